"""Conversations in groups: each group shares one long system prompt, and each conversation continues on its own.

The text is the Python standard library's own sources, cut to a number of tokens by the tokenizer of the served model.
Conversations start as a Poisson process. Inside one, the next question follows the answer after an exponential pause,
so a slow answer delays only its own conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

from loadtest.workload.conversations import QUESTIONS, Conversation, Turn, documents

CHARS_PER_TOKEN = 8
"""An upper bound for source text with these tokenizers. This much text is read before it is cut to tokens."""

Cut = Callable[[str, int], str]
"""(text, tokens) -> the first `tokens` tokens of the text, or all of it if it is shorter."""


@dataclass(frozen=True, slots=True)
class GroupShape:
    """The number of groups, conversations and turns, the length of each part, and the rate of new conversations.

    `opening_tokens` is the conversation's own text before its first question. `question_tokens` is the text that comes
    with each later question. Every answer has exactly `answer_tokens`.
    """

    groups: int = 12
    conversations: int = 48
    turns: int = 4
    system_tokens: int = 4_400
    opening_tokens: int = 200
    question_tokens: int = 100
    answer_tokens: int = 48
    starts_per_s: float = 2.0
    pause_s: float = 2.0

    @property
    def requests(self) -> int:
        return self.conversations * self.turns


def cutter(model_dir: Path) -> Cut:
    """Return a function that cuts text by the tokenizer in `model_dir`."""
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))

    def cut(text: str, tokens: int) -> str:
        offsets = tokenizer.encode(text, add_special_tokens=False).offsets
        return text if len(offsets) <= tokens else text[: offsets[tokens - 1][1]]

    return cut


def generate_groups(shape: GroupShape, seed: int, cut: Cut) -> list[Conversation]:
    """Return the conversations of one run, by start time. Equal arguments give equal text and times."""
    rng = Random(seed)
    systems = [cut(text, shape.system_tokens) for text in _texts(rng, shape.groups, shape.system_tokens)]
    excerpts = _Excerpts(rng, cut)
    return list(_conversations(shape, rng, systems, excerpts))


def _texts(rng: Random, count: int, tokens: int) -> list[str]:
    size_chars = tokens * CHARS_PER_TOKEN
    return documents(rng, count, (size_chars, size_chars))


class _Excerpts:
    """Short passages from different places of the sources."""

    def __init__(self, rng: Random, cut: Cut) -> None:
        self._rng = rng
        self._cut = cut
        self._sources = _texts(rng, 16, 4_000)

    def draw(self, tokens: int) -> str:
        size_chars = tokens * CHARS_PER_TOKEN
        source = self._rng.choice(self._sources)
        begin = self._rng.randrange(max(1, len(source) - size_chars))
        return self._cut(source[begin : begin + size_chars], tokens)


def _conversations(shape: GroupShape, rng: Random, systems: list[str], excerpts: _Excerpts) -> Iterator[Conversation]:
    start_s = 0.0
    for number in range(shape.conversations):
        start_s += rng.expovariate(shape.starts_per_s)
        opening = f"Conversation {number}.\n{excerpts.draw(shape.opening_tokens)}"
        turns = tuple(_turn(shape, rng, excerpts, index) for index in range(shape.turns))
        yield Conversation(f"conversation-{number}", start_s, rng.choice(systems), opening, turns)


def _turn(shape: GroupShape, rng: Random, excerpts: _Excerpts, index: int) -> Turn:
    question = rng.choice(QUESTIONS)
    if index == 0:
        return Turn(question, 0.0, shape.answer_tokens)
    passage = excerpts.draw(shape.question_tokens)
    return Turn(f"{passage}\n\n{question}", rng.expovariate(1 / shape.pause_s), shape.answer_tokens)
