"""The transition table of an attempt: one row for each state and event that it expects there."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from router.gateway.flow.outcomes import AttemptEvent, Outcome
from router.placement.request import FailurePoint


class AttemptState(IntEnum):
    """The states before `SENT` come before the request was written, those from `OPEN` on after the answer has begun."""

    DIALLING = 0
    UNSENT = 1
    """Over, and the request was not written to its last connection."""
    SENT = 2
    HELD = 3
    """The beginning of the answer is kept back for a moment, to be judged with what follows."""
    NOT_FOUND = 4
    """A short 404 is read: it may be about the model."""
    ERROR_BODY = 5
    """The body of a server error is read. It is passed on if no other worker is tried."""
    OPEN = 6
    TUNNEL = 7
    ENDED = 8
    """The answer is complete, and its connection waits for the release."""
    OVER = 9


class Release(IntEnum):
    """What becomes of the connection."""

    KEEP = 0
    REUSE = 1
    CLOSE = 2


class AttemptTransition(NamedTuple):
    """One row: `point` is that of the failure, None without one, and `outcomes` go to the request."""

    to: AttemptState
    release: Release
    point: FailurePoint | None
    outcomes: tuple[Outcome, ...]


_S, _E, _O, _P = AttemptState, AttemptEvent, Outcome, FailurePoint
_KEEP, _REUSE, _CLOSE = Release.KEEP, Release.REUSE, Release.CLOSE
_SILENT: Final = (_S.SENT, _S.HELD)
_UNJUDGED: Final = (_S.SENT, _S.HELD, _S.NOT_FOUND)
_WRITTEN: Final = tuple(state for state in _S if state >= _S.SENT and state is not _S.OVER)
_ERRED: Final = (_O.SUSPECTED, _O.FAILED)
_BROKE: Final = (_O.BROKEN, _O.FAILED)
_FAILED: Final = (_O.FAILED,)

_ROWS: Final[
    tuple[
        tuple[tuple[AttemptState, ...], AttemptEvent, AttemptState, Release, FailurePoint | None, tuple[Outcome, ...]],
        ...,
    ]
] = (
    # the connection
    ((_S.DIALLING,), _E.SEND, _S.SENT, _KEEP, None, ()),
    ((_S.DIALLING,), _E.UNREACHABLE, _S.UNSENT, _KEEP, _P.CONNECT, _FAILED),
    ((_S.DIALLING,), _E.NO_DIAL, _S.UNSENT, _KEEP, _P.LOCAL, _FAILED),
    ((_S.DIALLING,), _E.UNREACHABLE_AGAIN, _S.UNSENT, _KEEP, _P.SENT, _BROKE),
    # the head
    ((_S.SENT,), _E.AGAIN, _S.DIALLING, _REUSE, None, ()),
    ((_S.SENT,), _E.SERVER_ERROR, _S.ERROR_BODY, _KEEP, None, ()),
    ((_S.SENT,), _E.MISSING, _S.NOT_FOUND, _KEEP, None, ()),
    ((_S.SENT,), _E.SWITCH, _S.TUNNEL, _KEEP, None, (_O.SWITCHED,)),
    # the beginning of the body
    (_UNJUDGED, _E.OPEN, _S.OPEN, _KEEP, None, (_O.OPENED,)),
    (_SILENT, _E.PREAMBLE, _S.HELD, _KEEP, None, ()),
    (_UNJUDGED, _E.PART, _S.HELD, _KEEP, None, ()),
    (_SILENT, _E.REFUSED, _S.OVER, _REUSE, _P.REFUSED, _FAILED),
    (_SILENT, _E.DOUBTED, _S.OVER, _CLOSE, _P.ANSWERED, _FAILED),
    (_SILENT, _E.ERROR_EVENT, _S.OVER, _CLOSE, _P.ANSWERED, _ERRED),
    # errors that are whole, or will not be
    ((_S.SENT, _S.ERROR_BODY), _E.ERROR_CUT, _S.OVER, _REUSE, _P.ANSWERED, _ERRED),
    ((_S.ERROR_BODY,), _E.INVALID, _S.OVER, _CLOSE, _P.ANSWERED, _ERRED),
    ((_S.ERROR_BODY,), _E.LOST, _S.OVER, _CLOSE, _P.ANSWERED, _ERRED),
    ((_S.ERROR_BODY,), _E.STOPPING, _S.OVER, _REUSE, _P.STOPPING, _FAILED),
    ((_S.ERROR_BODY,), _E.END, _S.ENDED, _KEEP, _P.ANSWERED, (_O.SUSPECTED, _O.ERRED)),
    ((_S.NOT_FOUND,), _E.NO_MODEL, _S.ENDED, _KEEP, _P.UNSERVED, (_O.NOT_FOUND,)),
    # the end
    ((*_UNJUDGED, _S.OPEN), _E.END, _S.ENDED, _KEEP, None, (_O.ANSWERED,)),
    (_SILENT, _E.ABORTED, _S.OVER, _CLOSE, _P.ANSWERED, _FAILED),
    (_UNJUDGED, _E.INVALID, _S.OVER, _CLOSE, _P.SENT, _FAILED),
    (_UNJUDGED, _E.LOST, _S.OVER, _CLOSE, _P.SENT, _BROKE),
    ((_S.SENT,), _E.STALE, _S.DIALLING, _CLOSE, None, ()),
    ((_S.SENT,), _E.STALE_LATE, _S.DIALLING, _CLOSE, None, (_O.BROKEN,)),
    ((_S.OPEN, _S.TUNNEL), _E.INVALID, _S.OVER, _CLOSE, _P.STREAM, _FAILED),
    ((_S.OPEN, _S.TUNNEL), _E.LOST, _S.OVER, _CLOSE, _P.STREAM, _FAILED),
    # the request's will
    ((_S.DIALLING,), _E.GIVEN_UP, _S.UNSENT, _CLOSE, _P.CONNECT, _FAILED),
    ((_S.DIALLING,), _E.LATE, _S.UNSENT, _CLOSE, _P.CONNECT, _FAILED),
    (_WRITTEN, _E.GIVEN_UP, _S.OVER, _CLOSE, _P.SENT, _FAILED),
    (_WRITTEN, _E.LATE, _S.OVER, _CLOSE, _P.LATE, _FAILED),
    ((_S.DIALLING,), _E.RELEASED, _S.UNSENT, _CLOSE, None, ()),
    (_WRITTEN, _E.RELEASED, _S.OVER, _KEEP, None, ()),
)

ATTEMPT_TRANSITIONS: Final = {
    (state, event): AttemptTransition(to, release, point, outcomes)
    for states, event, to, release, point, outcomes in _ROWS
    for state in states
}
"""What is not in the table changes nothing."""
