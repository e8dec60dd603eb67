from __future__ import annotations

from enum import StrEnum


class Difference(StrEnum):
    """The reason for one request's difference. A request whose report agrees has none.

    Three moments matter. The prediction is made when the request is placed. The worker's hit is fixed when the worker
    schedules the request, after the wait in its queue. The events about its cache arrive later still.
    """

    PENDING = "pending"
    """No reason yet; the events that explain it may still arrive."""
    SCHEDULED_SINCE = "scheduled_since"
    """More was found: events since then show that the blocks, or their events, arrived after the decision."""
    SLOWER_TIER = "slower_tier"
    """More was found, and the worker also caches outside its GPU."""
    EVICTED_WHILE_QUEUED = "evicted_while_queued"
    """Less was found: an event since then shows the eviction of the first missing block."""
    RESERVED_NOT_SCHEDULED = "reserved_not_scheduled"
    """Less was found: the missing blocks belonged to a request in flight that was not scheduled yet."""
    CLEARED = "cleared"
    """The cache was cleared, the worker restarted, or its view was dropped in between."""
    APPROXIMATE = "approximate"
    """The view was not exact at the placement or at the report, so the prediction was an estimate."""
    OTHER = "other"
    """No reason found: events were lost unnoticed, or worker and router disagree about the blocks."""
