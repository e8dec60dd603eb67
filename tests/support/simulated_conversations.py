"""Conversations about shared prefixes, drawn from a seed, and the small workers that serve them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from backends.engine.engine import EngineRequest
from backends.engine.profile import load_profile
from loadtest.sim.sessions import Session
from loadtest.sim.worker import WorkerSpec
from loadtest.workload import plan
from loadtest.workload.plan import Plan
from loadtest.workload.text import Text
from router.residency.chain import SEED, extend_chain
from router.residency.prompt import Prompt, PromptSource


@dataclass(frozen=True, slots=True)
class Call:
    """A request in token ids: the prompt, and the answer that the model will give."""

    prompt_ids: array[int]
    output_ids: array[int]
    pause_s: float = 0.0
    leaves_after_s: float | None = None

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt_ids)

    @property
    def max_tokens(self) -> int:
        return len(self.output_ids)

    def prompt(self) -> Prompt:
        packed = self.prompt_ids.tobytes()
        return Prompt(
            len(self.prompt_ids), PromptSource.IDS, lambda block_tokens: extend_chain(SEED, packed, block_tokens)
        )

    def request(self, name: str, block_tokens: int) -> EngineRequest:
        return EngineRequest(name, self.prompt_ids, len(self.output_ids))


@dataclass(frozen=True, slots=True)
class Shape:
    """Conversations, each about one of several prefixes. Ranges are inclusive, in tokens; times are means.

    Prefix number k is chosen with weight ``(k + 1) ** -skew``. In `leaving_share` of the calls the client leaves
    within `leaving_s`.
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


def conversations(shape: Shape, seed: int) -> list[Session]:
    """Return sessions that start as a Poisson process; equal arguments give equal sessions."""
    rng = Random(seed)
    prefixes = [tokens(rng, shape.prefix_tokens) for _ in range(shape.prefixes)]
    weights = list(accumulate((number + 1) ** -shape.skew for number in range(shape.prefixes)))
    start_s, drawn = 0.0, []
    for number in range(shape.sessions):
        start_s += rng.expovariate(shape.starts_per_s)
        (prefix,) = rng.choices(prefixes, cum_weights=weights)
        drawn.append(Session(f"session-{number}", start_s, tuple(_calls(shape, prefix, rng))))
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


def planned_in_texts(seed: int, sessions: int, prompt_tokens: tuple[int, int], answer_tokens: tuple[int, int]) -> Plan:
    """Return conversations of one to four turns about five shared texts, which all start within 2.4 s."""
    rng, drawn = Random(seed), []
    for number in range(sessions):
        said, calls = Text.of([(rng.randrange(5), rng.randint(*prompt_tokens))]), []
        for turn in range(rng.randint(1, 4)):
            said = said.plus((1_000 + 10 * number + turn, rng.randint(20, 300)))
            answer = (50_000 + 10 * number + turn, rng.randint(*answer_tokens))
            calls.append(plan.Call(said, answer, rng.random(), max_tokens=answer[1]))
            said = said.plus(answer)
        drawn.append(plan.Session(f"s{number}", 2.4 * rng.random(), tuple(calls)))
    return Plan.of("drawn", drawn, 2.4)
