"""What the residency map says: matches, the state of a worker's view, what became of an event batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from policies.view import Residency


class Match(msgspec.Struct, frozen=True, gc=False):
    """How much of a prompt one slot has, in tokens, whole blocks only and at most ``n - 1`` rounded down.

    `tokens` counts the worker's fastest tier plus what requests already booked there will have put into it;
    `reserved_tokens` is the part of `tokens` that rests on bookings alone. `by_tier` is None where only the fastest
    tier is known; otherwise it splits the longest prefix found over all tiers (``{"GPU": 96, "CPU": 32}``, bookings
    left out).

    With `Residency.APPROXIMATE` the figure is the model's (`approximate.ApproximateView`), or what was learned from
    events and reports since some were missed; with `Residency.UNKNOWN` it is the last known state, and with
    `Residency.OFF` 0. `event_view.EventView` says which is when.
    """

    tokens: int
    reserved_tokens: int
    residency: Residency
    by_tier: Mapping[str, int] | None = None


class IngestOutcome(StrEnum):
    """What became of one event batch."""

    APPLIED = "applied"
    BUFFERED = "buffered"
    """Kept until the replay under way has filled what is missing before it."""
    GAP = "gap"
    """Batches before this one are missing; it is buffered."""
    STALE = "stale"
    """Already applied; nothing done."""
    RESTARTED = "restarted"
    """The publisher began again; the slot's old view was dropped."""
    REJECTED = "rejected"
    """Not readable; counted, and the view is learned anew from here on."""
    IGNORED = "ignored"
    """The slot takes no events (unknown slot, or an approximate view)."""


@dataclass(frozen=True, slots=True)
class Ingest:
    """`outcome`, and the sequence number from which to ask the publisher for a replay, if one is needed.

    `missing` batches were found to be lost for good.
    """

    outcome: IngestOutcome
    replay_from: int | None = None
    missing: int = 0


@dataclass(frozen=True, slots=True)
class ViewState:
    """How far one slot's view can be trusted, in words an operator can act on.

    `blocks` are distinct blocks believed to be in the fastest tier; `last_event_ts_s` is the worker's own wall clock
    in its last batch.
    """

    residency: Residency
    reason: str
    blocks: int
    block_size: int
    capacity_blocks: int | None
    next_seq: int | None = None
    last_event_ts_s: float | None = None
