"""Follow one request through the transition table. Pure: it takes events and returns effects and deadlines."""

from __future__ import annotations

import math
from typing import Any, Final

from router.config.model import TimeoutsConfig
from router.gateway.flow.deadlines import QUIET_LIMITS, Deadline, deadline_s
from router.gateway.flow.transitions import BEGUN, BY_STATE, Effect, Event, Guard, RequestState, Transition

_NOTHING: Final[tuple[Effect, ...]] = ()


class Flow:
    """The state of one request, its running attempt, its place in the plan and its deadlines.

    `attempt` is an opaque handle with a load reservation; None while none runs. A plan has one or more legs, such as a
    prefill worker and then a decode worker. Only the last leg's answer goes to the client.

    `since_s` is the time when the current state began. `last_read_s` of its methods is the time of the last byte of the
    answer, or of either side of a tunnel.
    """

    __slots__ = (
        "_comment_s", "_dropped", "_end_s", "_timeouts", "attempt", "commented", "leg", "legs", "queue_s",
        "resumes", "row", "since_s", "state", "worked_s",
    )  # fmt: skip

    def __init__(self, timeouts: TimeoutsConfig, arrived_s: float, legs: int = 1) -> None:
        self._timeouts = timeouts
        self._end_s = arrived_s + timeouts.total_s
        self._comment_s = math.inf
        self.since_s = arrived_s
        self.queue_s = timeouts.queue_s
        """The longest time in a queue."""
        self.worked_s = -math.inf
        """When the worker of a quiet stream last worked on any request, as far as that was asked."""
        self.state = RequestState.IDENTIFYING
        self.attempt: Any = None
        self._dropped: Any = None
        self.leg = 0
        self.legs = legs
        self.commented = False
        """SSE comments were written to the client, or part of an answer that goes on: there is a head already."""
        self.resumes = False
        """An answer in progress whose worker fails goes on at another one."""
        self.row: Transition | None = None
        """The last transition."""

    def handle(self, event: Event, attempt: Any = None) -> tuple[Effect, ...]:
        """Take the event's transition; return the effects for the driver, in order.

        The result is empty for an event that the state does not expect, and for an attempt that no longer runs.
        """
        for row in BY_STATE[self.state][event]:
            guard = row.guard
            if guard is Guard.ALWAYS:
                break
            if guard is Guard.EARLIER_LEG:
                if self.leg < self.legs - 1:
                    break
            elif self.resumes if guard is Guard.RESUMES else self.commented:
                break
        else:
            return _NOTHING
        if row.sends:
            self.attempt = attempt
        elif attempt is not None and attempt is not self.attempt:
            return _NOTHING
        elif row.cancels:
            self._dropped, self.attempt = self.attempt, None
        elif row.releases:
            self.attempt = None
        if row.advances:
            self.leg += 1
        elif row.comments:
            self.commented = True
        self.state = row.to
        self.row = row
        return row.effects

    @property
    def in_earlier_leg(self) -> bool:
        return self.leg < self.legs - 1

    def skip_to_last_leg(self) -> None:
        """Give up the plan's earlier legs: the next attempt serves the whole request."""
        self.leg = self.legs - 1

    def begin_again(self) -> None:
        """Note that an answer in progress goes on with one further leg."""
        self.leg, self.legs, self.resumes = 0, 1, False

    def take_dropped(self) -> Any:
        """Return the attempt that `Effect.CANCEL` cancels, once."""
        dropped, self._dropped = self._dropped, None
        return dropped

    # time

    def comments_from(self, arrived_s: float) -> None:
        self._comment_s = arrived_s + self._timeouts.header_delay_s

    def comment_sent(self, now_s: float) -> None:
        self._comment_s = now_s + self._timeouts.comment_interval_s

    def answer_began(self, now_s: float, events: bool) -> None:
        """Start the time of the answer; one of `events` gets comments while it is quiet."""
        self._comment_s = now_s + self._timeouts.comment_interval_s if events else math.inf
        self.since_s = now_s

    def goes_on(self, now_s: float, last_read_s: float, worked_s: float) -> bool:
        """Return whether a stream that has been quiet for too long may go on, because its worker worked at `worked_s`.

        Workers hold the arguments of a tool call and hidden reasoning back for minutes.
        """
        idle_s = self._timeouts.stream_idle_s
        self.worked_s = worked_s
        return now_s < min(worked_s + idle_s, last_read_s + QUIET_LIMITS * idle_s)

    def tunnel_began(self) -> None:
        """Remove the limit on the total time: a tunnel ends only when both sides are idle."""
        self._end_s = self._comment_s = math.inf

    def next_s(self, last_read_s: float) -> float:
        return min(self._state_s(last_read_s), self._end_s, self._next_comment_s(last_read_s))

    def due(self, now_s: float, last_read_s: float) -> Deadline:
        if now_s >= self._state_s(last_read_s):
            return Deadline.STATE
        if now_s >= self._end_s:
            return Deadline.TOTAL
        return Deadline.COMMENT if now_s >= self._next_comment_s(last_read_s) else Deadline.NOTHING

    def _next_comment_s(self, last_read_s: float) -> float:
        if self.state is not RequestState.STREAMING:
            return self._comment_s
        return max(self._comment_s, last_read_s + self._timeouts.comment_interval_s)

    def _state_s(self, last_read_s: float) -> float:
        state = self.state
        if state is RequestState.WAITING:
            return deadline_s(self._timeouts, self.attempt)
        if state in BEGUN:
            return (self.worked_s if self.worked_s > last_read_s else last_read_s) + self._timeouts.stream_idle_s
        return self.since_s + self.queue_s if state is RequestState.QUEUED else math.inf
