"""Multi-turn conversations over text that every machine has: the Python standard library's own sources.

Each conversation opens with one of a few shared system prompts, quotes a source file and asks about it turn after
turn. Conversations start as a Poisson process. Inside one, the next question follows the answer after an exponential
pause, so slow answers slow only their own conversation.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

ROLES = (
    "a patient reviewer of Python code who explains what a piece of code does before judging it",
    "a performance engineer who looks for needless work, hidden copies and accidental quadratic loops",
    "a security reviewer who asks of every input where it comes from and what it can reach",
)
RULES = (
    "Quote the lines you speak about.",
    "Name the function or class before you describe it.",
    "Say when something depends on a version of Python.",
    "Do not suggest a rewrite where a smaller change is enough.",
    "Prefer the standard library to a new dependency.",
    "Point out untested branches.",
    "Give an example call for every function you recommend.",
    "Keep each answer short enough to read in a minute.",
    "If the file does not answer the question, say so.",
    "Mention thread safety only where shared state is touched.",
)
QUESTIONS = (
    "What is this module for, in two sentences?",
    "Which function here would you test first, and with what input?",
    "Where could an exception escape that the caller does not expect?",
    "Which names are public, and is that list right?",
    "Is there a loop whose cost grows faster than its input?",
    "What would break if this ran in two threads at once?",
    "Which comment would you delete, and which one is missing?",
    "How would you split this file if it had to be two?",
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One question, the pause before it (seconds after the previous answer) and the answer's length in tokens."""

    question: str
    pause_s: float
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation begins `start_s` after the run begins; `system` and `document` open it, and the turns follow."""

    id: str
    start_s: float
    system: str
    document: str
    turns: tuple[Turn, ...]

    def opening(self) -> list[dict[str, str]]:
        """Return the messages before the first question."""
        return [{"role": "system", "content": self.system}]

    def message(self, index: int) -> dict[str, str]:
        """Return the user's message of turn `index`; the first one contains the document."""
        question = self.turns[index].question
        return {"role": "user", "content": f"{self.document}\n\n{question}" if index == 0 else question}


@dataclass(frozen=True, slots=True)
class Shape:
    """The number and length of conversations, their rate and pauses, and the size of their documents in characters."""

    conversations: int = 60
    turns: int = 5
    starts_per_s: float = 2.0
    pause_s: float = 1.5
    answer_tokens: int = 32
    document_chars: tuple[int, int] = (8_000, 26_000)
    shared_documents: float = 0.25


def system_prompt(role: str, rng: Random) -> str:
    """Return a few hundred tokens of instructions, which every conversation of that role shares."""
    rules = rng.sample(RULES, len(RULES))
    lines = "\n".join(f"{number}. {rule}" for number, rule in enumerate(rules, 1))
    return f"You are {role}. You read one file at a time and answer questions about it. Rules:\n{lines}"


def documents(rng: Random, count: int, size_chars: tuple[int, int]) -> list[str]:
    """Return `count` different source files of the standard library, cut to a drawn size."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in folder.glob("*.py") if path.stat().st_size >= size_chars[0])
    if not files:
        raise RuntimeError(f"no Python sources found in {folder}; the demo reads the standard library's own files")
    chosen = rng.sample(files, count) if count <= len(files) else [rng.choice(files) for _ in range(count)]
    return [
        f"File {path.name}:\n\n{path.read_text(encoding='utf-8', errors='replace')[: rng.randint(*size_chars)]}"
        for path in chosen
    ]


def generate(shape: Shape, seed: int) -> list[Conversation]:
    """Return the conversations of one run, by start time. Equal arguments give equal text and times."""
    rng = Random(seed)
    systems = [system_prompt(role, rng) for role in ROLES]
    distinct = max(1, round(shape.conversations * (1 - shape.shared_documents)))
    texts = documents(rng, distinct, shape.document_chars)
    return list(_conversations(shape, rng, systems, texts))


def _conversations(shape: Shape, rng: Random, systems: list[str], texts: list[str]) -> Iterator[Conversation]:
    start_s = 0.0
    for number in range(shape.conversations):
        start_s += rng.expovariate(shape.starts_per_s)
        document = texts[number] if number < len(texts) else rng.choice(texts)
        yield Conversation(f"conversation-{number}", start_s, rng.choice(systems), document, _turns(shape, rng))


def _turns(shape: Shape, rng: Random) -> tuple[Turn, ...]:
    questions = rng.sample(QUESTIONS, min(shape.turns, len(QUESTIONS)))
    return tuple(
        Turn(
            question=question,
            pause_s=rng.expovariate(1 / shape.pause_s) if index else 0.0,
            answer_tokens=rng.randint(shape.answer_tokens // 2, shape.answer_tokens * 3 // 2),
        )
        for index, question in enumerate(questions)
    )
