"""The scenarios of both sides: requests with fixed text and fixed arrival times, independent of the answers.

The text is that of `loadtest.workload.conversations`. A later turn holds an earlier question and an answer written
beforehand, not the generated one. So both sides see the same prompts. The generated tokens stay in the caches and are
never requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any

from loadtest.workload.conversations import QUESTIONS, RULES, Conversation, Shape, documents, generate

ANSWER_TIME_S = 0.4
"""Time in the schedule for an answer, followed by the pause before the next question."""
EXCERPT_CHARS = (2_000, 5_000)
"""Length of the file excerpt in some later turns. Its prefill takes longer than the transfer to the engine."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: its send time (seconds after the begin), its messages, and the number of tokens in its answer."""

    id: str
    at_s: float
    messages: tuple[Mapping[str, str], ...]
    answer_tokens: int

    def body(self, model: str) -> dict[str, Any]:
        """Return the chat completions body, without the members for streaming."""
        return {
            "model": model,
            "messages": list(self.messages),
            "max_tokens": self.answer_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
        }


@dataclass(frozen=True, slots=True)
class Scenario:
    """Arrivals, by time. With `one_at_a_time` the times are ignored, and each request waits for the previous one."""

    name: str
    about: str
    arrivals: tuple[Arrival, ...]
    one_at_a_time: bool = False


def one_at_a_time(seed: int, conversations: int = 18) -> Scenario:
    """Return conversations whose turns are interleaved at random; together they exceed the cache."""
    shape = Shape(conversations=conversations, turns=4, answer_tokens=24, document_chars=(4_000, 18_000))
    arrivals = _scheduled(generate(shape, seed), "talk", excerpts_seed=seed)
    about = f"{len(arrivals)} requests, each after the end of the one before; more text than the cache holds"
    return Scenario("one in flight", about, _shuffled(arrivals, Random(seed)), one_at_a_time=True)


def low(seed: int, conversations: int = 16) -> Scenario:
    """Return a few concurrent requests that rarely wait."""
    shape = Shape(conversations, 4, 1.0, 1.5, 48, (2_000, 10_000))
    arrivals = _scheduled(generate(shape, seed), "talk", excerpts_seed=seed)
    return _open("low load", "conversations about files; few requests at once", arrivals)


def high(seed: int, conversations: int = 80) -> Scenario:
    """Return long prompts with short answers and short prompts with long ones, near the limit of the GPU."""
    return _open(
        "high load",
        "long prompts beside long answers; the GPU is busy nearly all the time",
        _mixed(seed, conversations),
    )


def pressure(seed: int, conversations: int = 64) -> Scenario:
    """Return more running requests than the cache can hold: preemption, and eviction of prefixes that return."""
    shape = Shape(conversations, 2, 16.0, 1.0, 320, (3_000, 9_000))
    arrivals = _scheduled(generate(shape, seed), "pressure")
    return _open(
        "cache pressure",
        "long answers fill the cache: preemption, and prompts evicted before they return",
        arrivals,
    )


SCENARIOS: Mapping[str, Callable[[int], Scenario]] = MappingProxyType(
    {"one": one_at_a_time, "low": low, "high": high, "pressure": pressure}
)
"""Scenarios by their name on the command line."""


def _open(name: str, about: str, arrivals: list[Arrival]) -> Scenario:
    ordered = sorted(arrivals, key=lambda arrival: arrival.at_s)
    return Scenario(name, f"{len(ordered)} requests over {ordered[-1].at_s:.0f} s; {about}", tuple(ordered))


def _mixed(seed: int, conversations: int) -> list[Arrival]:
    readers = Shape(conversations, 3, 6.0, 1.5, 16, (4_000, 14_000))
    talkers = Shape(conversations // 2, 4, 3.0, 1.0, 128, (600, 3_000))
    return _scheduled(generate(readers, seed), "read") + _scheduled(generate(talkers, seed + 1), "talk")


def _scheduled(conversations: Iterable[Conversation], prefix: str, excerpts_seed: int | None = None) -> list[Arrival]:
    """Return every turn at its time; with `excerpts_seed` each turn after the first contains an excerpt of a file."""
    rng = Random(excerpts_seed)
    arrivals: list[Arrival] = []
    for number, conversation in enumerate(conversations):
        at_s = conversation.start_s
        messages = conversation.opening()
        for index, turn in enumerate(conversation.turns):
            at_s += turn.pause_s + (ANSWER_TIME_S if index else 0.0)
            messages.append(conversation.message(index))
            if index and excerpts_seed is not None:
                [excerpt] = documents(rng, 1, EXCERPT_CHARS)
                messages[-1] = {"role": "user", "content": f"{excerpt}\n\n{turn.question}"}
            arrivals.append(Arrival(f"{prefix}-{number}-{index}", at_s, tuple(messages), turn.answer_tokens))
            messages.append({"role": "assistant", "content": _written_answer(number, index)})
    return arrivals


def _written_answer(number: int, index: int) -> str:
    """Return an answer that no worker generates: it begins with a digit, and the clock answers in lower-case words."""
    rule, question = RULES[(number + index) % len(RULES)], QUESTIONS[(number * 3 + index) % len(QUESTIONS)]
    return f"{index + 1}. {rule} The next thing to ask would be: {question}"


def _shuffled(arrivals: list[Arrival], rng: Random) -> tuple[Arrival, ...]:
    """Return all arrivals in random order, but each conversation's turns in their own order."""
    slots = [arrival.id.rsplit("-", 1)[0] for arrival in arrivals]
    rng.shuffle(slots)
    queues: dict[str, list[Arrival]] = {}
    for arrival in reversed(arrivals):
        queues.setdefault(arrival.id.rsplit("-", 1)[0], []).append(arrival)
    return tuple(queues[slot].pop() for slot in slots)
