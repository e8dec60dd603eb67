"""The transition table of a request: one row for each state, event and condition."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class RequestState(IntEnum):
    """The state of a request. An IntEnum, because hashing a member of a plain Enum runs Python code."""

    IDENTIFYING = 0
    PLACING = 1
    QUEUED = 2
    HELD = 3
    WAITING = 4
    STREAMING = 5
    TUNNEL = 6
    OVER = 7


class Event(IntEnum):
    """An input of the flow. Each of the `ATTEMPT_EVENTS` comes with the attempt that it concerns."""

    IDENTIFIED = 0
    REFUSED = 1
    PLACED = 2
    NO_WORKER = 3
    HOLD = 4
    OFFERED = 5
    OPENED = 6
    ANSWERED = 7
    DECLINED = 8
    ERRED = 9
    FAILED = 10
    SWITCHED = 11
    COMMENT_DUE = 12
    STALLED = 13
    CLIENT_STALLED = 14
    STOPPED = 15
    CLIENT_GONE = 16
    HANDED_ON = 17


class Effect(IntEnum):
    """An output of the flow: one step for the driver. The effects of `ASKS` cause the next event."""

    PLACE = 0
    NEXT_LEG = 1
    QUEUE = 2
    HOLD = 3
    LEAVE = 4
    SEND = 5
    CANCEL = 6
    RETRY = 7
    FAIL = 8
    RESPOND = 9
    SWITCH = 10
    COMMENT = 11
    ABORT_CLIENT = 12
    END = 13
    FINISH = 14
    COMPLETE = 15
    PASS_ERROR = 16
    REPLY = 17
    BREAK_OFF = 18
    FINISH_LEG = 19
    RESUME = 20


class Guard(IntEnum):
    ALWAYS = 0
    EARLIER_LEG = 1
    COMMENTED = 2
    RESUMES = 3


BEGUN: Final = (RequestState.STREAMING, RequestState.TUNNEL)
"""The states in which the client has part of a worker's answer, and bytes extend the deadline."""

ATTEMPT_EVENTS: Final = frozenset(
    {
        Event.PLACED,
        Event.OPENED,
        Event.ANSWERED,
        Event.DECLINED,
        Event.ERRED,
        Event.FAILED,
        Event.SWITCHED,
        Event.STALLED,
    }
)
RELEASES: Final = frozenset({Effect.RETRY, Effect.FAIL, Effect.FINISH, Effect.FINISH_LEG, Effect.PASS_ERROR})
"""Effects that end the load reservation of the event's attempt."""
ASKS: Final = frozenset({Effect.PLACE, Effect.NEXT_LEG, Effect.RETRY, Effect.RESUME})
"""Effects that cause an event at once. Each is the last effect of its row."""


class Transition:
    """One row of the table.

    `sends`, `releases`, `cancels` and `advances` summarise how the effects change the attempt and the plan.
    """

    def __init__(
        self, state: RequestState, event: Event, guard: Guard, effects: tuple[Effect, ...], to: RequestState
    ) -> None:
        self.state = state
        self.event = event
        self.guard = guard
        self.effects = effects
        self.to = to
        self.sends = Effect.SEND in effects
        self.releases = not RELEASES.isdisjoint(effects)
        self.cancels = Effect.CANCEL in effects
        self.advances = Effect.NEXT_LEG in effects
        self.comments = Effect.COMMENT in effects or Effect.RESUME in effects


_S, _E, _F, _G = RequestState, Event, Effect, Guard
_UNSENT: Final = (_S.IDENTIFYING, _S.PLACING, _S.QUEUED, _S.HELD)
_ROWS: Final[tuple[tuple[tuple[RequestState, ...], Event, Guard, tuple[Effect, ...], RequestState | None], ...]] = (
    # a worker is found, or not
    ((_S.IDENTIFYING,), _E.IDENTIFIED, _G.ALWAYS, (_F.PLACE,), _S.PLACING),
    ((_S.PLACING,), _E.PLACED, _G.ALWAYS, (_F.SEND,), _S.WAITING),
    ((_S.QUEUED, _S.HELD), _E.PLACED, _G.ALWAYS, (_F.LEAVE, _F.SEND), _S.WAITING),
    ((_S.PLACING,), _E.NO_WORKER, _G.ALWAYS, (_F.QUEUE,), _S.QUEUED),
    ((_S.QUEUED,), _E.NO_WORKER, _G.ALWAYS, (_F.LEAVE, _F.QUEUE), _S.QUEUED),
    ((_S.HELD,), _E.NO_WORKER, _G.ALWAYS, (_F.QUEUE,), _S.QUEUED),
    ((_S.PLACING, _S.HELD), _E.HOLD, _G.ALWAYS, (_F.HOLD,), _S.HELD),
    ((_S.QUEUED,), _E.HOLD, _G.ALWAYS, (_F.LEAVE, _F.HOLD), _S.HELD),
    ((_S.QUEUED,), _E.OFFERED, _G.ALWAYS, (_F.PLACE,), _S.QUEUED),
    ((_S.HELD,), _E.OFFERED, _G.ALWAYS, (_F.LEAVE, _F.PLACE), _S.HELD),
    (_UNSENT, _E.REFUSED, _G.ALWAYS, (_F.LEAVE, _F.REPLY, _F.END), _S.OVER),
    # an attempt runs
    ((_S.WAITING,), _E.OPENED, _G.EARLIER_LEG, (), _S.WAITING),
    ((_S.WAITING,), _E.OPENED, _G.ALWAYS, (_F.RESPOND,), _S.STREAMING),
    ((_S.WAITING,), _E.ANSWERED, _G.EARLIER_LEG, (_F.FINISH_LEG, _F.NEXT_LEG), _S.PLACING),
    ((_S.WAITING,), _E.ANSWERED, _G.COMMENTED, (_F.FINISH, _F.COMPLETE, _F.END), _S.OVER),
    ((_S.WAITING,), _E.ANSWERED, _G.ALWAYS, (_F.RESPOND, _F.FINISH, _F.COMPLETE, _F.END), _S.OVER),
    ((_S.WAITING,), _E.DECLINED, _G.EARLIER_LEG, (_F.FINISH_LEG, _F.NEXT_LEG), _S.PLACING),
    ((_S.WAITING,), _E.DECLINED, _G.COMMENTED, (_F.FINISH, _F.COMPLETE, _F.END), _S.OVER),
    ((_S.WAITING,), _E.DECLINED, _G.ALWAYS, (_F.RESPOND, _F.FINISH, _F.COMPLETE, _F.END), _S.OVER),
    ((_S.WAITING,), _E.ERRED, _G.ALWAYS, (_F.PASS_ERROR, _F.COMPLETE, _F.END), _S.OVER),
    ((_S.WAITING,), _E.FAILED, _G.ALWAYS, (_F.RETRY,), _S.PLACING),
    ((_S.WAITING,), _E.HOLD, _G.ALWAYS, (_F.CANCEL, _F.HOLD), _S.HELD),
    ((_S.WAITING,), _E.SWITCHED, _G.ALWAYS, (_F.SWITCH,), _S.TUNNEL),
    # its answer goes to the client
    ((_S.STREAMING,), _E.ANSWERED, _G.ALWAYS, (_F.FINISH, _F.COMPLETE, _F.END), _S.OVER),
    ((_S.STREAMING,), _E.DECLINED, _G.ALWAYS, (_F.FINISH, _F.COMPLETE, _F.END), _S.OVER),
    ((_S.STREAMING,), _E.HANDED_ON, _G.RESUMES, (_F.CANCEL, _F.RESUME), _S.PLACING),
    ((_S.STREAMING,), _E.FAILED, _G.RESUMES, (_F.FAIL, _F.RESUME), _S.PLACING),
    ((_S.STREAMING,), _E.FAILED, _G.ALWAYS, (_F.FAIL, _F.BREAK_OFF, _F.END), _S.OVER),
    ((_S.STREAMING,), _E.STALLED, _G.ALWAYS, (_F.FAIL, _F.BREAK_OFF, _F.END), _S.OVER),
    ((_S.STREAMING,), _E.CLIENT_STALLED, _G.ALWAYS, (_F.ABORT_CLIENT,), _S.STREAMING),
    ((_S.TUNNEL,), _E.FAILED, _G.ALWAYS, (_F.FINISH, _F.END), _S.OVER),
    ((_S.TUNNEL,), _E.STALLED, _G.ALWAYS, (_F.FINISH, _F.END), _S.OVER),
    # deadlines, the gateway or the client end the request
    ((_S.IDENTIFYING, _S.QUEUED, _S.HELD, _S.WAITING, _S.STREAMING), _E.COMMENT_DUE, _G.ALWAYS, (_F.COMMENT,), None),
    (_UNSENT, _E.STOPPED, _G.ALWAYS, (_F.LEAVE, _F.REPLY, _F.END), _S.OVER),
    ((_S.WAITING,), _E.STOPPED, _G.ALWAYS, (_F.LEAVE, _F.CANCEL, _F.REPLY, _F.END), _S.OVER),
    ((_S.STREAMING,), _E.STOPPED, _G.ALWAYS, (_F.CANCEL, _F.BREAK_OFF, _F.END), _S.OVER),
    ((_S.TUNNEL,), _E.STOPPED, _G.ALWAYS, (_F.CANCEL, _F.END), _S.OVER),
    (_UNSENT, _E.CLIENT_GONE, _G.ALWAYS, (_F.LEAVE, _F.END), _S.OVER),
    ((_S.WAITING, _S.STREAMING, _S.TUNNEL), _E.CLIENT_GONE, _G.ALWAYS, (_F.CANCEL, _F.END), _S.OVER),
)

TRANSITIONS: Final = tuple(
    Transition(state, event, guard, effects, state if to is None else to)
    for states, event, guard, effects, to in _ROWS
    for state in states
)
"""In one state, the first row for an event whose guard holds is taken."""
BY_STATE: Final[tuple[tuple[tuple[Transition, ...], ...], ...]] = tuple(
    tuple(tuple(row for row in TRANSITIONS if row.state == state and row.event == event) for event in Event)
    for state in RequestState
)
"""The rows by state and event."""
