"""The time limits of a request's states, and the detection of stalled streams. Pure."""

from __future__ import annotations

import math
from typing import Final

from router.config.model import TimeoutsConfig
from router.gateway.flow.transitions import RequestState

MIN_BYTES_PER_S = 16.0
"""The least rate of a begun answer while no event is completed. A large event, of a megabyte say, may take long."""


class Limits:
    """The time limits of requests, in seconds, and the limit on requests in progress."""

    __slots__ = (
        "comment_interval_s",
        "connect_s",
        "first_event_s",
        "header_delay_s",
        "idle_s",
        "max_requests",
        "state_s",
        "total_s",
    )

    def __init__(self, timeouts: TimeoutsConfig, max_requests: int) -> None:
        self.max_requests: Final = max_requests
        self.connect_s: Final = timeouts.connect_s
        self.first_event_s: Final = timeouts.first_event_s
        self.idle_s: Final = timeouts.stream_idle_s
        self.total_s: Final = timeouts.total_s
        self.header_delay_s: Final = timeouts.header_delay_s
        self.comment_interval_s: Final = timeouts.comment_interval_s
        limits = dict.fromkeys(RequestState, math.inf)
        limits[RequestState.QUEUED] = timeouts.queue_s
        limits[RequestState.STREAMING] = limits[RequestState.TUNNEL] = self.idle_s
        self.state_s: Final = tuple(limits[state] for state in RequestState)
        """By state, counted from its start; in STREAMING and TUNNEL from the last byte. Attempts have other limits."""

    def attempt_deadline_s(self, sent: bool, since_s: float) -> float:
        """Return the deadline of an attempt that was `sent`, or began to dial, at `since_s`."""
        return since_s + (self.first_event_s if sent else self.connect_s)


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

        False if the last check is less than `idle_s` ago. These checks need no timer: reads do not move the client's
        deadline, so the sweep calls `ForwardedRequest.expired` during a healthy stream, too.
        """
        seen_s = max(self._seen_s, began_s)
        if now_s - seen_s < idle_s:
            return False
        events_before, bytes_before = self._events, self._bytes
        self.seen(now_s, events, size_bytes)
        return events <= events_before and size_bytes - bytes_before < MIN_BYTES_PER_S * (now_s - seen_s)
