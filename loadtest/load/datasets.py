"""Datasets: sessions of calls, and the texts of those pieces that are real text.

Equal arguments give equal sessions in every process. A dataset without end repeats nothing, except that files of texts
begin again after their last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import msgspec

from loadtest.load.order import Dataset
from loadtest.workload.draw import Draws, stream
from loadtest.workload.errors import WorkloadError
from loadtest.workload.generators.registry import parse_generator
from loadtest.workload.plan import Call, Session
from loadtest.workload.rows import opened, records
from loadtest.workload.schemas import bailian
from loadtest.workload.schemas.schema import Schema
from loadtest.workload.source import GENERATOR
from loadtest.workload.text import Text
from loadtest.workload.trace import Trace
from loadtest.workload.wording import Wording

SYNTHETIC = ("random", "prefix_repetition")
TEXTS = ("sharegpt", "custom")
TIMED: Mapping[str, Schema | None] = {"trace": None, "timed_trace": bailian.TIMED}
NAMES = (*SYNTHETIC, *TEXTS, *TIMED)
WINDOW_S = 600.0
"""Generators are drawn in windows of this length, so that a run of days holds only one of them."""
CUSTOM_OUTPUT_LEN = PREFIX_LEN = 256
SHORTEST, LONGEST_PROMPT, LONGEST = 4, 1024, 2048
"""Limits on ShareGPT's lengths in tokens, as in `vllm bench serve`."""


@dataclass(slots=True)
class Source:
    """Sessions, and the texts of their pieces by id."""

    sessions: Iterator[Session]
    texts: dict[int, str] = field(default_factory=dict)


def source(dataset: Dataset, seed: int, wording: Wording) -> Source:
    """Return the dataset's sessions.

    Raises:
        WorkloadError: there is no dataset of this name, it needs a file, or the file is wrong; says what is.
    """
    if dataset.name.startswith(GENERATOR):
        return Source(_generated(dataset.name, seed))
    if dataset.name == "random":
        return Source(_random(dataset, seed))
    if dataset.name == "prefix_repetition":
        return Source(_prefixes(dataset, seed))
    if dataset.name not in NAMES:
        raise WorkloadError(f"there is no dataset {dataset.name!r}; there are {', '.join(NAMES)}, {GENERATOR}NAME")
    if dataset.path is None:
        raise WorkloadError(f"--dataset-name {dataset.name} needs --dataset-path")
    if dataset.name in TIMED:
        trace = Trace.of(dataset.path, TIMED[dataset.name])
        return Source(iter(trace.draw(seed, trace.timetable.span_s).sessions))
    rows = _share_gpt(dataset.path) if dataset.name == "sharegpt" else _custom(dataset.path)
    return _written(dataset, seed, rows, wording)


def _generated(name: str, seed: int) -> Iterator[Session]:
    generator = parse_generator(name.removeprefix(GENERATOR))
    for window in count():
        for session in generator.draw(seed + window, WINDOW_S).sessions:
            yield replace(session, id=f"{window}/{session.id}", start_s=session.start_s + window * WINDOW_S)


def _random(dataset: Dataset, seed: int) -> Iterator[Session]:
    rng = stream(seed, "random")
    draws = Draws(rng)
    prefix = draws.piece(dataset.prefix_len or 0)

    def length(mean: int) -> int:
        spread = round(mean * dataset.range_ratio)
        return max(1, rng.randint(mean - spread, mean + spread))

    for number in count():
        prompt = Text.of([prefix, draws.piece(length(dataset.input_len))])
        answer = draws.piece(length(dataset.output_len or 128))
        yield Session(f"random-{number}", 0.0, (Call(prompt, answer, kind="random"),))


def _prefixes(dataset: Dataset, seed: int) -> Iterator[Session]:
    draws = Draws(stream(seed, "prefixes"))
    length = PREFIX_LEN if dataset.prefix_len is None else dataset.prefix_len
    prefixes = [draws.piece(length) for _ in range(dataset.num_prefixes)]
    for number in count():
        prompt = Text.of([draws.rng.choice(prefixes), draws.piece(dataset.input_len)])
        yield Session(f"prefix-{number}", 0.0, (Call(prompt, draws.piece(dataset.output_len or 128), kind="prefix"),))


@dataclass(frozen=True, slots=True)
class Written:
    """A conversation of real text: (question, answer's text or its length) by turn."""

    turns: tuple[tuple[str, str | int], ...]
    at_s: float = 0.0


class _Said(msgspec.Struct):
    from_: str = msgspec.field(name="from")
    value: str


class _Conversation(msgspec.Struct):
    conversations: list[_Said] = []


def _share_gpt(path: Path) -> list[Written]:
    with opened(path) as text:
        try:
            found = msgspec.json.decode(text.read(), type=list[_Conversation])
        except msgspec.DecodeError as error:
            raise WorkloadError(f"{path} is no ShareGPT file: {error}") from None
    return [
        Written(tuple((one.value, next_.value) for one, next_ in zip(said[::2], said[1::2], strict=False)))
        for said in ([*each.conversations] for each in found)
        if len(said) >= 2
    ]


def _custom(path: Path) -> list[Written]:
    """Read rows with ``prompt``, and perhaps ``output_tokens`` and a time (Baseten's ``timestamp_start_unix_ms``)."""
    found: list[Written] = []
    for number, row in records(path):
        prompt = row.get("prompt")
        if not isinstance(prompt, str) or not prompt:
            raise WorkloadError(f"{path}, row {number}: it has no text `prompt`")
        found.append(Written(((prompt, _number(path, number, row, "output_tokens")),), _at_s(path, number, row)))
    return sorted(found, key=lambda one: one.at_s)


def _at_s(path: Path, number: int, row: dict[str, Any]) -> float:
    return _number(path, number, row, "timestamp_start_unix_ms") * 1e-3


def _number(path: Path, number: int, row: dict[str, Any], name: str) -> int:
    try:
        value = int(float(row.get(name, 0)))
    except (TypeError, ValueError, OverflowError):
        value = -1
    if value < 0:
        raise WorkloadError(f"{path}, row {number}: `{name}` is no number of at least 0")
    return value


def _written(dataset: Dataset, seed: int, rows: list[Written], wording: Wording) -> Source:
    timed = any(one.at_s for one in rows)
    if dataset.shuffle and not timed:
        stream(seed, "order").shuffle(rows)
    made = Source(iter(()))
    start_s = rows[0].at_s if rows else 0.0
    kept = [
        (one, calls)
        for place, one in enumerate(rows)
        if (calls := tuple(_calls(dataset, one, place << 20, wording, made.texts)))
    ]
    if not kept:
        raise WorkloadError(f"{dataset.path} has no text of a length that is used")

    def sessions() -> Iterator[Session]:
        for round_ in count():
            for number, (one, calls) in enumerate(kept):
                yield Session(f"{round_}/{number}", one.at_s - start_s, calls)
            if timed:
                return

    made.sessions = sessions()
    return made


def _calls(dataset: Dataset, one: Written, first_id: int, wording: Wording, texts: dict[int, str]) -> Iterable[Call]:
    said, ids = Text((), 0), count(first_id)
    for question, answer in one.turns if dataset.multi_turn else one.turns[:1]:
        asked = (next(ids), max(1, wording.length(question)))
        tokens = dataset.output_len or (wording.length(answer) if isinstance(answer, str) else answer)
        tokens = tokens or CUSTOM_OUTPUT_LEN
        prompt = said.plus(asked)
        if dataset.name == "sharegpt" and not _usual(prompt.tokens, tokens):
            return
        texts[asked[0]] = question
        replied = (next(ids), tokens)
        yield Call(prompt, replied, kind=dataset.name)
        said = prompt.plus(replied)


def _usual(prompt_tokens: int, answer_tokens: int) -> bool:
    long = prompt_tokens > LONGEST_PROMPT or prompt_tokens + answer_tokens > LONGEST
    return not long and min(prompt_tokens, answer_tokens) >= SHORTEST


def first(sessions: Iterator[Session], calls: int | None) -> Iterator[Session]:
    """Yield sessions up to a number of calls; the last one is cut."""
    left = calls
    for session in sessions:
        if left is None:
            yield session
            continue
        if left <= 0:
            return
        yield replace(session, calls=tuple(islice(session.calls, left)))
        left -= len(session.calls)
