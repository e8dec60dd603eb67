"""The outcome of one scenario on one side."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request. Times are modelled seconds: real ones divided by the clock's time scale.

    `arrived_s` and `first_token_s` count from the scenario's begin; the time to first token runs from the arrival.
    """

    id: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    arrived_s: float
    first_token_s: float
    last_token_s: float

    @property
    def ttft_s(self) -> float:
        """Time from arrival to first token, waiting included."""
        return self.first_token_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None if there is only one."""
        if self.output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)


@dataclass(slots=True)
class BlockHistory:
    """When physical copies of blocks came and went, by block hash (`BlockHasher`'s, on both sides)."""

    changes: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    evictions: int = 0

    def stored(self, block_hash: int, at_s: float) -> None:
        """Record a copy that requests can hit."""
        self.changes.setdefault(block_hash, []).append((at_s, 1))

    def removed(self, block_hash: int, at_s: float) -> None:
        """Record the eviction of a copy."""
        self.changes.setdefault(block_hash, []).append((at_s, -1))
        self.evictions += 1

    def copies_at(self, block_hash: int, time_s: float) -> int:
        return sum(change for at_s, change in self.changes.get(block_hash, ()) if at_s <= time_s)

    def stored_before(self, block_hash: int, time_s: float) -> bool:
        """Return whether any copy had been stored by then."""
        return any(change > 0 for at_s, change in self.changes.get(block_hash, ()) if at_s <= time_s)

    def fewest_copies(self, block_hash: int, after_s: float, until_s: float) -> int:
        """Return the lowest number of copies at any time between the two."""
        fewest = copies = self.copies_at(block_hash, after_s)
        for at_s, change in self.changes.get(block_hash, ()):
            if after_s < at_s <= until_s:
                copies += change
                fewest = min(fewest, copies)
        return fewest

    def statistics(self) -> dict[str, int]:
        """Return the numbers of distinct blocks and of evicted copies."""
        return {"blocks": len(self.changes), "evictions": self.evictions}


@dataclass(frozen=True, slots=True)
class Played:
    """One side's run of one scenario, outcomes in the order of its arrivals."""

    outcomes: tuple[Outcome, ...]
    history: BlockHistory
    preemptions: int
