"""Conversations about shared prefixes, drawn from a seed, and the small workers that serve them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from backends.engine.profile import load_profile
from loadtest.sim.sessions import Call, Session
from loadtest.sim.worker import WorkerSpec


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
CACHE_TOKENS = 65_000
"""Cache size of a small worker."""


def small_workers(count: int = 4) -> tuple[WorkerSpec, ...]:
    """Return workers with 8B on one H100 each, where other uses take most of the memory."""
    profile = load_profile("llama-3.1-8b-h100")
    return (WorkerSpec(profile, num_blocks=CACHE_TOKENS // profile.block_size + 1),) * count


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
