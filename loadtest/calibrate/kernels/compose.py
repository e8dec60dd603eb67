"""Steps composed of timed operations, and the fit to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from loadtest.calibrate.kernels.operations import AllReduce, Operation, step_operations
from loadtest.calibrate.kernels.shape import ModelShape
from loadtest.calibrate.readings import Kind, Reading, prefill_reading

REDUCE_MS = 0.01
"""Of an all-reduce beside its bytes, which is taken and not timed: one GPU has no links."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What is composed: prompts as (new, cached) tokens, and decode batches with each context."""

    prompts: tuple[tuple[int, int], ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]


GPU_GRID = Grid(
    prompts=(
        *((new, 0) for new in (128, 256, 512, 1_024, 2_048, 4_096, 8_192)),
        *((new, cached) for new in (512, 2_048, 8_192) for cached in (8_192, 32_768)),
    ),
    batches=(1, 8, 16, 32, 64, 128, 256),
    contexts=(512, 2_048, 8_192),
)
CPU_GRID = Grid(
    prompts=(*((new, 0) for new in (64, 128, 256, 512)), *((new, 512) for new in (64, 256))),
    batches=(1, 4, 16),
    contexts=(128, 512, 1_024),
)
"""Small, so that it takes seconds."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The GPUs of one worker; `link_gb_per_s` counts with more than one only."""

    count: int = 1
    link_gb_per_s: float = 1.0

    def reduce_ms(self, operation: AllReduce) -> float:
        """Return the time of a ring: each byte goes out and in, but for the rank's own part."""
        moved = 2 * (self.count - 1) / self.count * operation.moved_bytes
        return REDUCE_MS + moved / self.link_gb_per_s * 1e-6


def compose(
    shape: ModelShape, ranks: Ranks, grid: Grid, time_ms: Callable[[Operation], float], room_tokens: int
) -> Iterator[Reading]:
    """Yield a reading of each step of `grid` whose context is at most `room_tokens` in all. `time_ms` is called once
    for each operation of one GPU."""
    once = cache(time_ms)

    def step_ms(new: int, context: int, sequences: int = 1) -> float:
        counts = step_operations(shape, ranks.count, new, context, sequences)
        return sum(
            count * (ranks.reduce_ms(one) if isinstance(one, AllReduce) else once(one)) for one, count in counts.items()
        )

    for new, cached in grid.prompts:
        if new + cached <= room_tokens:
            yield prefill_reading(step_ms(new, new + cached), new, cached, budget_tokens=new)
    for context in grid.contexts:
        for batch in grid.batches:
            if batch * context <= room_tokens:
                ms = step_ms(1, context, batch)
                what = f"{batch} x {context:,} tokens"
                yield Reading(Kind.DECODE, what, ms, decodes=batch, context_tokens=batch * context)
