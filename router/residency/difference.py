"""Why a worker reported other cached tokens than had been predicted for a request."""

from __future__ import annotations

from enum import StrEnum


class Difference(StrEnum):
    """What explains one request's difference. Requests that agree have none.

    A prediction is made when a request is placed; what the worker finds is settled when it schedules the request, later
    by its queue; and what it did to its cache is told by events, later again.
    """

    PENDING = "pending"
    """Nothing so far; what explains it may still be on its way."""
    SCHEDULED_SINCE = "scheduled_since"
    """More was found: events have told of these blocks since, so they came, or word of them, after the decision."""
    SLOWER_TIER = "slower_tier"
    """More was found, and the worker also caches outside its GPU."""
    EVICTED_WHILE_QUEUED = "evicted_while_queued"
    """Less was found: an event has told since that the first missing block was evicted."""
    RESERVED_NOT_SCHEDULED = "reserved_not_scheduled"
    """Less was found: the missing blocks were those of a request in flight that had not come so far."""
    CLEARED = "cleared"
    """The cache was cleared, the worker restarted, or its view was dropped in between."""
    APPROXIMATE = "approximate"
    """The view was not exact, then or by the time of the report: the prediction was a guess."""
    OTHER = "other"
    """Nothing explains it: events were lost unnoticed, or the worker means other blocks than we do."""
