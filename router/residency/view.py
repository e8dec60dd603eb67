"""Results of the residency map: matches, the state of a view, the outcome of an event batch."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import msgspec

from policies.view import Residency, WorkerId


class Match(msgspec.Struct, frozen=True, gc=False):
    """Cached tokens of a prompt on one slot: whole blocks, at most ``n - 1`` tokens rounded down.

    `tokens` counts the worker's fastest tier plus the blocks of requests placed there. `reserved_tokens` is the part of
    `tokens` from reservations alone. `by_tier` is None if only the fastest tier is known; else it splits the longest
    prefix over all tiers (``{"GPU": 96, "CPU": 32}``, without reservations).

    With `Residency.APPROXIMATE`, `tokens` comes from the model (`approximate.ApproximateCache`), or from events and
    reports since a loss of events. With `Residency.UNKNOWN` it is the last known state, with `Residency.OFF` it is 0.
    `event_feed.EventFeed` defines which applies.
    """

    tokens: int
    reserved_tokens: int
    residency: Residency
    by_tier: Mapping[str, int] | None = None


class PlacedBlocks(NamedTuple):
    """Blocks of a placed prompt that the model of the worker's cache lacked: all of `chain` after the first `depth`.

    `steps` says where they belong (`approximate.ApproximateCache.placed`).
    """

    worker: WorkerId
    block_size: int
    chain: Sequence[int]
    steps: array[int]
    depth: int


class IngestOutcome(StrEnum):
    APPLIED = "applied"
    BUFFERED = "buffered"
    """Kept until the running replay has filled the gap before it."""
    GAP = "gap"
    """Batches before this one are missing; it is buffered."""
    STALE = "stale"
    """Already applied, so it has no effect."""
    RESTARTED = "restarted"
    """The publisher restarted; the slot's old view was dropped."""
    REJECTED = "rejected"
    """Not readable; counted, and the view starts over."""
    IGNORED = "ignored"
    """The slot takes no events (unknown slot, or an approximate cache)."""


@dataclass(frozen=True, slots=True)
class Ingest:
    """`outcome`, and the sequence number from which to ask the publisher for a replay, if one is needed.

    `missing` batches are lost for good.
    """

    outcome: IngestOutcome
    replay_from: int | None = None
    missing: int = 0


@dataclass(frozen=True, slots=True)
class CacheState:
    """How far one slot's view can be trusted, in words an operator can act on.

    `blocks` are distinct blocks in the fastest tier; `last_event_ts_s` is the worker's own wall clock in its last
    batch.
    """

    residency: Residency
    reason: str
    blocks: int
    block_size: int
    capacity_blocks: int | None
    next_seq: int | None = None
    last_event_ts_s: float | None = None
