"""The deadline of an attempt, and the detection of stalled streams. Pure."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Protocol

from router.config.model import TimeoutsConfig

MIN_BYTES_PER_S = 16.0
"""The least rate of a begun answer while no event is completed. A large event, of a megabyte say, may take long."""


QUIET_LIMITS = 20
"""A stream that brings nothing for so many idle limits has stalled, even if its worker works on other requests."""


class TimedAttempt(Protocol):
    """An attempt as deadlines see it."""

    since_s: float
    limit_s: float

    @property
    def sent(self) -> bool: ...
    @property
    def begins_early(self) -> bool: ...


def deadline_s(timeouts: TimeoutsConfig, attempt: TimedAttempt) -> float:
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
