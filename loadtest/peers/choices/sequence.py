"""Requests in a fixed order. Some are held open for a while, so that loads differ."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

_WORDS = (
    "anchor",
    "basin",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "garnet",
    "harbor",
    "island",
    "jasper",
    "kernel",
    "lagoon",
)


@dataclass(frozen=True, slots=True)
class Step:
    """Release the steps named in `releases`, then send `prompt`.

    With `hold` its answer continues until its own release.
    """

    prompt: str
    hold: bool
    releases: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of the kinds of prompts, sizes in words, and the most requests held at a time.

    `skew` distributes follow-up prompts over old conversations (1: evenly), which makes a few of them hot.
    """

    steps: int = 100
    follow_up: float = 0.55
    skew: float = 3.0
    new_conversation: float = 0.25
    hold: float = 0.6
    release: float = 0.4
    most_held: int = 14
    systems: int = 3
    system_words: int = 120
    message_words: int = 60


def draw(mix: Mix, seed: int) -> list[Step]:
    """Return growing conversations, some with a common system prompt, and prompts that resemble no earlier one."""
    random = Random(seed)
    systems = [_text(random, mix.system_words) for _ in range(mix.systems)]
    conversations: list[str] = []
    held: list[int] = []
    steps = []
    for number in range(mix.steps):
        prompt = _prompt(random, mix, systems, conversations)
        releases = _releases(random, mix, held)
        hold = random.random() < mix.hold
        if hold:
            held.append(number)
        steps.append(Step(prompt, hold, releases))
    return steps


def _prompt(random: Random, mix: Mix, systems: list[str], conversations: list[str]) -> str:
    kind = random.random()
    if kind < mix.follow_up and conversations:
        place = int(random.random() ** mix.skew * len(conversations))
        conversations[place] += " " + _text(random, random.randint(1, mix.message_words))
        return conversations[place]
    start = f"{random.choice(systems)} " if kind < mix.follow_up + mix.new_conversation else ""
    conversations.append(start + _text(random, random.randint(5, 2 * mix.message_words)))
    return conversations[-1]


def _releases(random: Random, mix: Mix, held: list[int]) -> tuple[int, ...]:
    gone: list[int] = []
    while held and (len(held) >= mix.most_held or random.random() < mix.release / (1 + len(gone))):
        gone.append(held.pop(random.randrange(len(held))))
        if len(held) < mix.most_held:
            break
    return tuple(gone)


def _text(random: Random, words: int) -> str:
    # The number makes texts differ from their first word on.
    return " ".join([f"{random.choice(_WORDS)}{random.randrange(1_000)}", *random.choices(_WORDS, k=words)])
