"""What the process that ingests a worker's KV events sends to the processes that follow it."""

from __future__ import annotations

from msgspec import Struct


class ViewFacts(Struct, frozen=True, array_like=True):
    """What an exact view knows beside its blocks. `adopted`: an event gave the block size. `slower_tiers`: some blocks
    are outside the GPU."""

    block_size: int
    capacity_blocks: int | None
    adopted: bool
    doubts: dict[str, str]
    slower_tiers: bool


class ViewChange(Struct, array_like=True, tag="change"):
    """The state of one view, and the blocks that have arrived and departed since the last change.

    `publisher` is the ingesting process's number for the view, and `bit` its number in the shared tables. Blocks are
    packed 64-bit hashes, and the rest of the log packed 64-bit numbers, as in `eviction_log.EvictionLog`.
    """

    publisher: int
    bit: int
    linked: bool
    begun: bool
    next_seq: int
    verified: bool
    replaying: bool
    assumed: bool
    replayed: int
    batches: int
    live_batches: int
    last_event_ts_s: float | None
    blocks: int
    """Distinct blocks announced on the GPU."""
    waiting_blocks: int
    orphans: int
    """Runs with unknown parents, ever added."""
    arrived: bytes = b""
    departed: bytes = b""
    runs: bytes = b""
    departed_by_run: bytes = b""
    starts: list[tuple[int, bytes]] = []
    """Runs from the start of a prompt, and runs that had waited for their parent: position among the arrivals, and the
    blocks of the former that were not known before, which are looked up only while missed blocks are learned again."""
    facts: ViewFacts | None = None
    """None: as before."""
    whole_from: tuple[int, int] | None = None
    """Arrivals and departures so far, if the log starts again. Earlier positions cannot be compared."""
    begins_again: bool = False
    """All blocks known before are forgotten: the cache was reset, or another publisher answers."""
    loss: str | None = None
    """Why events were missed, if they were since the last change."""
