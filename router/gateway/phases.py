"""The phases of an exchange and how long each may last."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum

from router.config.model import TimeoutsConfig


class Phase(IntEnum):
    """What the exchange waits for. (A plain Enum as a key runs Python code to hash it.)"""

    IDENTITY = 0
    WORKER = 1
    DEFERRED = 2
    DIAL = 3
    FIRST_EVENT = 4
    STREAM = 5
    TUNNEL = 6
    OVER = 7


def phase_limits_s(timeouts: TimeoutsConfig) -> Mapping[Phase, float]:
    """Seconds per phase: from its start, and in `STREAM` and `TUNNEL` from the last byte."""
    return {
        Phase.IDENTITY: math.inf,
        Phase.WORKER: timeouts.queue_s,
        Phase.DEFERRED: math.inf,
        Phase.DIAL: timeouts.connect_s,
        Phase.FIRST_EVENT: timeouts.first_event_s,
        Phase.STREAM: timeouts.stream_idle_s,
        Phase.TUNNEL: timeouts.stream_idle_s,
        Phase.OVER: math.inf,
    }
