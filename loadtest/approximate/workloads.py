"""The workloads: shared prompts, a long tail, a real trace, and one that makes a model drift."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from random import Random

from backends.engine.profile import Profile, load_profile
from loadtest.sim.sessions import Call, Session
from loadtest.sim.worker import WorkerSpec
from loadtest.workload.schemas import mooncake


@dataclass(frozen=True, slots=True)
class Workload:
    """`sessions` draws the load from a seed; `workers` are the fleet that serves it."""

    name: str
    about: str
    workers: tuple[WorkerSpec, ...]
    sessions: Callable[[int], list[Session]]

    @property
    def block_tokens(self) -> int:
        """Block size of every worker."""
        return self.workers[0].profile.block_size

    @property
    def cache_tokens(self) -> int:
        """Number of tokens that each worker's cache holds; the engine never uses its first block."""
        spec = self.workers[0]
        return ((spec.num_blocks or spec.profile.num_blocks) - 1) * spec.profile.block_size


@dataclass(frozen=True, slots=True)
class Shape:
    """Conversations, each about one of several prefixes. Ranges are inclusive, in tokens; times are means.

    Prefix number k is chosen with weight ``(k + 1) ** -skew``. `direct_share` of the sessions bypass the gateway. In
    `leaving_share` of the calls the client leaves within `leaving_s`.
    """

    sessions: int
    starts_per_s: float
    prefixes: int
    prefix_tokens: tuple[int, int]
    skew: float = 0.0
    turns: tuple[int, int] = (4, 4)
    pause_s: float = 2.0
    question_tokens: tuple[int, int] = (40, 300)
    answer_tokens: tuple[int, int] = (40, 200)
    direct_share: float = 0.0
    leaving_share: float = 0.0
    leaving_s: float = 1.0


SHARED_PROMPTS = Shape(sessions=48, starts_per_s=4.0, prefixes=12, prefix_tokens=(4_400, 4_400))
LONG_TAIL = Shape(
    sessions=300,
    starts_per_s=4.0,
    prefixes=160,
    prefix_tokens=(2_000, 8_000),
    skew=0.8,
    turns=(1, 4),
    pause_s=4.0,
    answer_tokens=(50, 600),
)
DRIFT = Shape(
    sessions=200,
    starts_per_s=4.0,
    prefixes=80,
    prefix_tokens=(2_000, 6_000),
    skew=0.8,
    turns=(1, 5),
    answer_tokens=(50, 600),
    direct_share=0.25,
    leaving_share=0.15,
)

CACHE_TOKENS = 65_000
"""Cache size per worker, in all workloads but the trace."""
TRACE_ROWS = 1_000
NAMES = ("shared-prompts", "long-tail", "drift", "trace")


def workloads(trace: Path | None, trace_rows: int = TRACE_ROWS) -> list[Workload]:
    """Return all workloads; the trace's only if its file is given."""
    small = small_workers()
    tokens = len(small) * CACHE_TOKENS
    listed = [
        Workload("shared-prompts", _about(SHARED_PROMPTS, tokens), small, partial(conversations, SHARED_PROMPTS, 4)),
        Workload("long-tail", _about(LONG_TAIL, tokens), small, partial(conversations, LONG_TAIL, 4)),
        Workload("drift", _about(DRIFT, tokens), small, partial(conversations, DRIFT, 4)),
    ]
    if trace is not None:
        about = f"{trace_rows} rows of {trace.name}, another part of it for each seed; 512-token blocks"
        listed.append(Workload("trace", about, large_workers(), partial(trace_sessions, trace, trace_rows)))
    return listed


def small_workers(count: int = 4) -> tuple[WorkerSpec, ...]:
    """Return workers with 8B on one H100 each, where other uses take most of the memory."""
    profile = load_profile("llama-3.1-8b-h100")
    return (WorkerSpec(profile, num_blocks=CACHE_TOKENS // profile.block_size + 1),) * count


def large_workers(count: int = 8) -> tuple[WorkerSpec, ...]:
    """Return workers with 70B on four H100 each, with the trace's own block size."""
    profile: Profile = replace(load_profile("llama-3.1-70b-4xh100"), block_size=mooncake.BLOCK_TOKENS)
    return (WorkerSpec(profile),) * count


def conversations(shape: Shape, workers: int, seed: int) -> list[Session]:
    """Return sessions that start as a Poisson process; equal arguments give equal sessions."""
    rng = Random(seed)
    prefixes = [tokens(rng, shape.prefix_tokens) for _ in range(shape.prefixes)]
    weights = list(accumulate((number + 1) ** -shape.skew for number in range(shape.prefixes)))
    start_s, drawn = 0.0, []
    for number in range(shape.sessions):
        start_s += rng.expovariate(shape.starts_per_s)
        (prefix,) = rng.choices(prefixes, cum_weights=weights)
        direct = rng.randrange(workers) if rng.random() < shape.direct_share else None
        drawn.append(Session(f"session-{number}", start_s, tuple(_calls(shape, prefix, rng)), direct))
    return drawn


def _calls(shape: Shape, prefix: array[int], rng: Random) -> list[Call]:
    """Return the turns of one conversation. An answer that its client abandoned is not in the next prompt."""
    said, calls = array("I", prefix), []
    for _ in range(rng.randint(*shape.turns)):
        said = said + tokens(rng, shape.question_tokens)
        answer = tokens(rng, shape.answer_tokens)
        leaves = rng.random() < shape.leaving_share
        leaves_after_s = rng.uniform(0.0, shape.leaving_s) if leaves else None
        calls.append(Call(said, answer, rng.expovariate(1 / shape.pause_s), leaves_after_s))
        if not leaves:
            said = said + answer
    return calls


def tokens(rng: Random, length: tuple[int, int]) -> array[int]:
    """Return tokens that occur nowhere else."""
    return array("I", rng.randbytes(4 * rng.randint(*length)))


def trace_sessions(trace: Path, count: int, seed: int) -> list[Session]:
    """Return `count` rows as one call each, since the trace does not name users. Seeds use its parts in turn.

    Raises:
        TraceError: the trace cannot be read.
    """
    rng = Random(seed)
    rows = mooncake.read_rows(trace)
    start = seed % max(1, len(rows) // count) * count
    return [
        Session(f"row-{number}", at_s, (Call(mooncake.prompt_ids(row), tokens(rng, (row.output_length,) * 2)),))
        for number, (at_s, row) in enumerate(mooncake.spread(islice(rows, start, start + count), rng))
    ]


def _about(shape: Shape, cache_tokens: int) -> str:
    prefix_tokens = shape.prefixes * sum(shape.prefix_tokens) // 2
    said = (
        f"{shape.sessions} conversations of {_range(shape.turns)} turns over {shape.prefixes} prefixes of "
        f"{_range(shape.prefix_tokens)} tokens: {prefix_tokens / cache_tokens:.1f} times all caches together"
    )
    if shape.direct_share or shape.leaving_share:
        said += f"; {shape.direct_share:.0%} pass the gateway by, {shape.leaving_share:.0%} of the answers are cut off"
    return said


def _range(both: tuple[int, int]) -> str:
    low, high = both
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
