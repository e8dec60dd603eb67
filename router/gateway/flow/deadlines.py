"""The deadlines of a request, and the detection of stalled streams. Pure."""

from __future__ import annotations

import math
from enum import IntEnum

from router.config.model import TimeoutsConfig
from router.gateway.flow.attempt.attempt import Attempt
from router.gateway.flow.flow import Flow
from router.gateway.flow.transitions import BEGUN, RequestState

MIN_BYTES_PER_S = 16.0
"""The least rate of a begun answer while no event is completed. A large event, of a megabyte say, may take long."""


QUIET_LIMITS = 20
"""A stream that brings nothing for so many idle limits has stalled, even if its worker works on other requests."""


def deadline_s(timeouts: TimeoutsConfig, attempt: Attempt) -> float:
    """Return when an attempt has lasted too long."""
    if not attempt.sent:
        return attempt.since_s + timeouts.connect_s
    limit_s = attempt.limit_s
    if attempt.begins_early and timeouts.first_event_s < limit_s:
        limit_s = timeouts.first_event_s
    return attempt.since_s + limit_s


class Deadline(IntEnum):
    NOTHING = 0
    STATE = 1
    """The state has lasted too long, or an attempt has."""
    TOTAL = 2
    """The request has lasted too long."""
    COMMENT = 3
    """The client of a stream has received nothing for too long."""


class RequestDeadlines:
    """The deadlines of one request. `since_s` is the time when its current state began.

    `last_read_s` of its methods is the time of the last byte of the answer, or of either side of a tunnel.
    """

    __slots__ = ("_comment_s", "_end_s", "_flow", "_timeouts", "queue_s", "since_s", "worked_s")

    def __init__(self, timeouts: TimeoutsConfig, flow: Flow, arrived_s: float) -> None:
        self._timeouts = timeouts
        self._flow = flow
        self._end_s = arrived_s + timeouts.total_s
        self._comment_s = math.inf
        self.since_s = arrived_s
        self.queue_s = timeouts.queue_s
        """The longest time in a queue."""
        self.worked_s = -math.inf
        """When the worker of a quiet stream last worked on any request, as far as that was asked."""

    def comments_from(self, arrived_s: float) -> None:
        self._comment_s = arrived_s + self._timeouts.header_delay_s

    def commented(self, now_s: float) -> None:
        self._comment_s = now_s + self._timeouts.comment_interval_s

    def attempt_began(self, attempt: Attempt) -> float:
        if self._flow.attempt is not attempt:
            return self.next_s(0.0)
        return min(deadline_s(self._timeouts, attempt), self._end_s, self._comment_s)

    def answer_began(self, now_s: float, events: bool) -> float:
        """Start the time of the answer; one of `events` gets comments while it is quiet. Return the earliest
        deadline."""
        self._comment_s = now_s + self._timeouts.comment_interval_s if events else math.inf
        self.since_s = now_s
        return min(now_s + self._timeouts.stream_idle_s, self._end_s, self._comment_s)

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
        if self._flow.state is not RequestState.STREAMING:
            return self._comment_s
        return max(self._comment_s, last_read_s + self._timeouts.comment_interval_s)

    def _state_s(self, last_read_s: float) -> float:
        state = self._flow.state
        if state is RequestState.WAITING:
            return deadline_s(self._timeouts, self._flow.attempt)
        if state in BEGUN:
            return (self.worked_s if self.worked_s > last_read_s else last_read_s) + self._timeouts.stream_idle_s
        return self.since_s + self.queue_s if state is RequestState.QUEUED else math.inf


class Trickle:
    """Detects a stream that sends bytes so slowly that it has stalled in effect."""

    __slots__ = ("_bytes", "_events", "_seen_s")

    def __init__(self) -> None:
        self._seen_s = -math.inf
        """When the stream was last checked; `_events` and `_bytes` are its counts at that time."""
        self._events = 0
        self._bytes = 0

    def seen(self, now_s: float, events: int, size_bytes: int) -> None:
        """Count from here. Also called when the client stops or resumes reading: its pauses are not the worker's."""
        self._seen_s, self._events, self._bytes = now_s, events, size_bytes

    def stalled(self, now_s: float, began_s: float, idle_s: float, events: int, size_bytes: int) -> bool:
        """Return whether the stream, begun at `began_s`, has brought almost nothing since the last check.

        False if it has brought nothing at all: whether a quiet stream has stalled depends on its worker. Also false if
        the last check is less than `idle_s` ago. These checks need no timer: reads do not move the client's deadline,
        so the sweep calls `RequestDriver.expired` during a healthy stream, too.
        """
        seen_s = max(self._seen_s, began_s)
        if now_s - seen_s < idle_s:
            return False
        events_before, bytes_before = self._events, self._bytes
        self.seen(now_s, events, size_bytes)
        return events <= events_before and 0 < size_bytes - bytes_before < MIN_BYTES_PER_S * (now_s - seen_s)
