"""The model of one worker's cache behind placed requests: what it holds, and what it learns from their ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from router.residency.approximate import ApproximateCache
from router.residency.exact.exact import NULL_BLOCKS
from router.residency.in_flight import ResidencyReservation
from router.residency.prompt import Prompt

DEFAULT_CAPACITY_TOKENS = 32_768
"""Cache size to assume if the worker reports none: the space that an 8B model leaves on a 24 GB GPU. That is a small
cache today.
"""

TEXT_TOLERANCE = 0.25
"""Share by which the prediction for a text prompt may exceed the report before it counts as wrong, because the length
of a text prompt is an estimate.
"""


_SHRINK_PARTS = 64
"""A model over the bound gives up at least 1/64 of the bound, so that the next request does not have to."""


class ModelBudget:
    """The memory of all models of a residency map, at most `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.models: list[CacheModel] = []
        self.used_bytes = 0

    def grew(self, grown_bytes: int) -> None:
        """Keep the sum under the bound by shrinking the largest model, a part of the bound at a time."""
        self.used_bytes += grown_bytes
        while self.used_bytes > self._most_bytes:
            largest = max(self.models, key=lambda model: model.size_bytes)
            before = largest.size_bytes
            excess = self.used_bytes - self._most_bytes
            largest.shrink(before - max(excess, self._most_bytes // _SHRINK_PARTS))
            self.used_bytes -= before - largest.size_bytes


class CacheModel:
    """An `ApproximateCache` that is made on first use, for blocks of `block_size` tokens."""

    def __init__(self, budget: ModelBudget, block_size: int, capacity_blocks: int | None) -> None:
        self._budget = budget
        budget.models.append(self)
        self.block_size = block_size
        self.capacity_blocks = capacity_blocks
        self.cache: ApproximateCache | None = None

    def fit(
        self, block_size: int, capacity_blocks: int | None, reservations: Iterable[ResidencyReservation] = ()
    ) -> None:
        """Take other sizes. The model starts over with other blocks, and `reservations` take no space in it then."""
        started_over, before = block_size != self.block_size, self.size_bytes
        self.block_size, self.capacity_blocks = block_size, capacity_blocks
        if self.cache is None:
            return
        if started_over:
            self.cache = None
            for reservation in reservations:
                reservation.reserved_blocks = 0
        else:
            self.cache.resize(self._blocks())
        self._budget.grew(self.size_bytes - before)

    def leave(self) -> None:
        self._budget.models.remove(self)
        self._budget.grew(-self.size_bytes)

    def clear(self) -> None:
        before = self.size_bytes
        self.shrink(0)
        self._budget.grew(self.size_bytes - before)

    def _blocks(self) -> int:
        if self.capacity_blocks:
            return max(1, self.capacity_blocks - NULL_BLOCKS)
        return max(1, DEFAULT_CAPACITY_TOKENS // self.block_size)

    def needed(self) -> ApproximateCache:
        if self.cache is None:
            self.cache = ApproximateCache(self.block_size, self._blocks())
        return self.cache

    @property
    def size_bytes(self) -> int:
        return 0 if self.cache is None else self.cache.size_bytes

    def shrink(self, size_bytes: int) -> None:
        if self.cache is not None:
            self.cache.shrink(size_bytes)

    def blocks(self, chain: Sequence[int], usable: int, tokens: int) -> int:
        """Return how many blocks of a prompt the model holds, from the result of `Prompt.usable_chain`."""
        return 0 if self.cache is None else self.cache.match(chain, usable, tokens)

    def reserve(self, reservation: ResidencyReservation) -> None:
        """Reserve space for a placed request, at once.

        vLLM allocates blocks when it schedules a request, first come, first served. When a later request looks for its
        prefix, this request has already evicted the blocks whose space it needed.
        """
        before, cache, prompt = self.size_bytes, self.needed(), reservation.prompt
        reservation.reserved_blocks = cache.running(
            prompt.chain(self.block_size), prompt.tokens + cache.half_answer_tokens
        )
        self._budget.grew(self.size_bytes - before)

    def finished(
        self, prompt: Prompt, generated_tokens: int, cached_tokens: int | None, reservation: ResidencyReservation | None
    ) -> None:
        before, cache = self.size_bytes, self.needed()
        chain, usable = prompt.usable_chain(self.block_size)
        hits = reservation.start if reservation is not None else cache.match(chain, usable, prompt.tokens)
        if cached_tokens is not None:
            hits = cached_tokens // self.block_size
            cache.found(chain, usable, prompt.tokens, hits)
            if reservation is not None:
                _correct(cache, chain, hits, reservation)
        if reservation is not None:
            self.end_running(reservation)
        tokens, generated = prompt.tokens, generated_tokens
        if prompt.multiple:
            # Tokens after the first prompt's blocks belong to the other prompts, whose hashes are not known.
            tokens, generated = len(chain) * self.block_size, 0
        if reservation is None or not reservation.running:
            # No first token was recorded for the request, but it took its space, including the last, partial block.
            cache.end_running(cache.running(chain, tokens + generated))
        cache.finished(chain, tokens, generated, hits)
        self._budget.grew(self.size_bytes - before)

    def cut_off(self, reservation: ResidencyReservation) -> None:
        """Store the prompt of a request that ran and did not finish."""
        self.end_running(reservation)
        before, chain = self.size_bytes, reservation.prompt.chain(self.block_size)
        self.needed().finished(chain, len(chain) * self.block_size, 0, reservation.start)
        self._budget.grew(self.size_bytes - before)

    def placed(self, steps: Sequence[int], depth: int, blocks: Sequence[int]) -> bool:
        """Store blocks of a prompt that another router has placed (`ApproximateCache.placed`)."""
        before = self.size_bytes
        stored = self.needed().placed(steps, depth, blocks)
        self._budget.grew(self.size_bytes - before)
        return stored

    def end_running(self, reservation: ResidencyReservation) -> None:
        if self.cache is not None:
            self.cache.end_running(reservation.reserved_blocks)
        reservation.reserved_blocks = 0


def _correct(cache: ApproximateCache, chain: Sequence[int], hits: int, reservation: ResidencyReservation) -> None:
    predicted = reservation.start
    tolerated = predicted if reservation.prompt.exact else predicted * (1 - TEXT_TOLERANCE) - 1
    # A hit beyond the prediction may come from requests just before this one, so it does not show the capacity.
    brought = (reservation.predicted_tokens or 0) // reservation.block_size
    if hits < tolerated or hits > max(predicted, brought):
        cache.fit(predicted, hits)
    if hits < tolerated:
        cache.correct(chain, hits, reservation.clock)
