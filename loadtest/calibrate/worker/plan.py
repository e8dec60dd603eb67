"""Which steps to measure, within the limits of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loadtest.calibrate.readings import CalibrationError

LONGEST_PROMPT_TOKENS = 32_768
LONGEST_CONTEXT_TOKENS = 4_096
LARGEST_BATCH = 64
REPEATS = 2
"""Of each prompt length: with steps that vary by 5 %, the fit is then within 5 % (tests/loadtest/calibrate)."""
DECODE_TOKENS = 128
MIXED_TOKENS = 384
"""Decodes that have to outlast two prompts."""
EXTENSION_TOKENS = 512
_KV_SHARE = 0.8
_FEWEST_TOKENS = 1_024
_SHORTEST_CONTEXT_TOKENS = 512
_MARGIN_TOKENS = 32


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """What bounds a step of the worker; `kv_tokens` and `block_size` are those of its metrics."""

    max_model_len: int
    kv_tokens: int
    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    prefix_caching: bool


@dataclass(frozen=True, slots=True)
class Batch:
    sequences: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """The last of `prompts` is sent again, alone and with `extension_tokens` more, if the worker caches prefixes."""

    prompts: tuple[int, ...]
    extension_tokens: int | None
    batches: tuple[Batch, ...]
    mixed: Batch
    mixed_prompts: tuple[int, ...]

    def prompt_tokens(self) -> int:
        """Return the tokens of all prompts, warm-up apart."""
        again = 0 if self.extension_tokens is None else 2 * self.prompts[-1] + self.extension_tokens
        batches = sum(batch.sequences * batch.prompt_tokens for batch in (*self.batches, self.mixed))
        return REPEATS * sum(self.prompts) + again + batches + sum(self.mixed_prompts)

    def requests(self) -> int:
        again = 0 if self.extension_tokens is None else 2
        return 1 + REPEATS * len(self.prompts) + again + len(self.batches) + 1 + len(self.mixed_prompts)

    def lines(self) -> Iterator[str]:
        yield f"{self.requests()} requests with {self.prompt_tokens():,} prompt tokens in all, of random token ids:"
        yield f"  prompts alone, each length twice: {', '.join(f'{tokens:,}' for tokens in self.prompts)} tokens"
        if self.extension_tokens is None:
            yield "  no repeated prefix"
        else:
            yield f"  the longest again, and with {self.extension_tokens:,} tokens more: its prefix is cached"
        batches = ", ".join(f"{batch.sequences} x {batch.prompt_tokens:,}" for batch in self.batches)
        yield f"  decode, {DECODE_TOKENS} tokens of each sequence: {batches} prompt tokens"
        beside = ", ".join(f"{tokens:,}" for tokens in self.mixed_prompts)
        yield f"  mixed steps: prompts of {beside} tokens beside {self.mixed.sequences} decodes"


def plan(limits: WorkerLimits) -> CalibrationPlan:
    """Choose lengths and batches that fit.

    Contexts do not grow with the batch, so that each has a cost of its own.

    Raises:
        CalibrationError: the worker is too small to be measured.
    """
    room_tokens = int(limits.kv_tokens * _KV_SHARE)
    most_tokens = min(limits.max_model_len, room_tokens) - _MARGIN_TOKENS
    if most_tokens < _FEWEST_TOKENS or limits.max_num_seqs < 8:
        raise CalibrationError(
            f"the worker is too small: prompts of {_FEWEST_TOKENS:,} tokens and 8 sequences are needed, and it holds "
            f"{limits.max_model_len:,} tokens of one, {limits.kv_tokens:,} in all, {limits.max_num_seqs} sequences"
        )
    extension = min(EXTENSION_TOKENS, most_tokens // 8) if limits.prefix_caching else None
    longest = min(LONGEST_PROMPT_TOKENS, most_tokens - (extension or 0))
    largest = min(LARGEST_BATCH, limits.max_num_seqs // 8 * 8)
    fits = ((batch, _context(batch, room_tokens, most_tokens)) for batch in range(largest, 0, -8))
    batch, context = next(((batch, context) for batch, context in fits if context >= _SHORTEST_CONTEXT_TOKENS), (0, 0))
    if not batch:
        raise CalibrationError(f"the worker's cache of {limits.kv_tokens:,} tokens is too small for 8 sequences")
    few = batch // 8
    mixed_prompts = min(limits.max_num_batched_tokens - few - limits.block_size, longest)
    return CalibrationPlan(
        prompts=tuple(longest // part for part in (64, 16, 4, 1)),
        extension_tokens=extension,
        batches=(
            Batch(1, context // 8, DECODE_TOKENS),
            Batch(few, context, DECODE_TOKENS),
            Batch(batch // 2, context // 16, DECODE_TOKENS),
            Batch(batch, context // 4, DECODE_TOKENS),
        ),
        mixed=Batch(few, context // 4, MIXED_TOKENS),
        mixed_prompts=(mixed_prompts // 4, mixed_prompts // 2),
    )


def _context(batch: int, room_tokens: int, most_tokens: int) -> int:
    """Return the longest context of the batches: a quarter of it in the largest, all of it in one of an eighth."""
    answers = batch * (MIXED_TOKENS + _MARGIN_TOKENS)
    return min(LONGEST_CONTEXT_TOKENS, most_tokens - MIXED_TOKENS, (room_tokens - answers) * 4 // batch)
