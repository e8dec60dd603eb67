"""The traffic to plan for: which parts of a trace are simulated, cut out as traces of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path

import msgspec

from backends.engine.profile import Profile
from loadtest.workload.draw import Draws, stream
from loadtest.workload.errors import WorkloadError
from loadtest.workload.generators.registry import Generator
from loadtest.workload.plan import Session
from loadtest.workload.rows import records
from loadtest.workload.schemas.known import typed_rows
from loadtest.workload.schemas.schema import Arrival
from loadtest.workload.source import parse_source
from loadtest.workload.trace import Trace

HOUR_S = 3600.0
BIN_S = 60.0
"""Arrivals are counted per minute; a piece of traffic begins and ends with one."""
BATCH = 32
"""Size of a batch among whose requests the work of a decode step is shared out, to compare hours."""
MOST_BINS = 60 * 24 * 366


@dataclass(frozen=True, slots=True)
class Piece:
    """Traffic that is simulated: `trace` from the start of its warm-up on; `length_s` follow the warm-up.

    `work_s` is the time that one worker would need for it without a cache. It only compares pieces.
    """

    trace: str
    start_s: float
    length_s: float
    warm_up_s: float
    calls: int
    work_s: float
    prefill_s: float
    """The part of `work_s` that is prefill."""


@dataclass(frozen=True, slots=True)
class Hour:
    """One hour of the trace, and the piece of it that is simulated."""

    start_s: float
    length_s: float
    calls: int
    prompt_tokens: int
    sample: Piece


@dataclass(frozen=True, slots=True)
class Traffic:
    """`busiest` is the window of the most work, `peak` the whole hour around it, None if it is no longer."""

    source: str
    span_s: float
    calls: int
    busiest: Piece
    peak: Piece | None
    hours: tuple[Hour, ...]


class Minutes:
    """What arrives in each minute of a trace: calls, prompt tokens, and seconds of one worker's time."""

    def __init__(self, profile: Profile, first_s: float, span_s: float) -> None:
        if span_s > MOST_BINS * BIN_S:
            raise WorkloadError(f"the trace is {span_s / 86_400:,.0f} days long; plan for at most 366 days of it")
        self._profile = profile
        self._first_s = first_s
        bins = max(1, ceil(span_s / BIN_S))
        self.calls = [0] * bins
        self.prompt_tokens = [0] * bins
        self.work_s = [0.0] * bins
        self.prefill_s = [0.0] * bins

    def add(self, session: Session) -> None:
        """Count a session's calls as if answers took no time; those after the trace's end count in its last minute."""
        at_s = session.start_s
        for call in session.calls:
            at_s += call.pause_s
            place = min(int((at_s - self._first_s) / BIN_S), len(self.calls) - 1)
            self.calls[place] += 1
            self.prompt_tokens[place] += call.prompt.tokens
            prefill_s, decode_s = work_s(self._profile, call.prompt.tokens, call.answer[1])
            self.work_s[place] += prefill_s + decode_s
            self.prefill_s[place] += prefill_s

    def busiest(self, first: int, last: int, length: int) -> int:
        """Return the minute in [first, last) at which the `length` minutes of the most work begin."""
        starts = range(first, max(first + 1, last - length + 1))
        return max(starts, key=lambda start: sum(self.work_s[start : start + length]))

    def piece(self, start: int, length: int, warm_up: int, path: Path) -> Piece:
        end = min(len(self.calls), start + length)
        start = max(start, min(warm_up, end // 2))  # a trace's beginning warms up, because nothing comes before it
        before = min(start, warm_up)
        calls, *work = (sum(counts[start:end]) for counts in (self.calls, self.work_s, self.prefill_s))
        return Piece(str(path), start * BIN_S, (end - start) * BIN_S, before * BIN_S, int(calls), *work)


def work_s(profile: Profile, prompt_tokens: int, answer_tokens: int) -> tuple[float, float]:
    """Return the seconds of prefill and of decode that one call costs a worker whose cache has nothing of it."""
    prefill, decode = profile.prefill, profile.decode
    prefill_ms = prefill.b_us * prompt_tokens / 1e3 + prefill.d_ns * prompt_tokens * prompt_tokens / 2e6
    context_tokens = prompt_tokens + answer_tokens / 2
    token_ms = decode.a_ms / BATCH + decode.b_ms + decode.k_ns * context_tokens / 1e6
    return prefill_ms / 1e3, answer_tokens * token_ms / 1e3


def traffic(text: str, profile: Profile, window_s: float, warm_up_s: float, folder: Path) -> Traffic:
    """Return the traffic of a trace or generator; pieces of a trace are written into `folder`.

    Raises:
        WorkloadError: it cannot be read, or has no calls.
    """
    source = parse_source(text)
    if isinstance(source, Trace):
        found = _recorded(text, source, profile, window_s, warm_up_s, folder)
    else:
        found = _generated(text, source, profile, window_s, warm_up_s)
    if not found.busiest.calls:
        raise WorkloadError(f"{text} has no calls in its busiest window of {window_s:g} s; make --window-s longer")
    return found


def _generated(text: str, source: Generator, profile: Profile, window_s: float, warm_up_s: float) -> Traffic:
    plan = source.draw(0, warm_up_s + window_s)
    minutes = Minutes(profile, 0.0, warm_up_s + window_s)
    for session in plan.sessions:
        minutes.add(session)
    share = window_s / (warm_up_s + window_s)
    calls, work, prefill = round(plan.calls * share), sum(minutes.work_s) * share, sum(minutes.prefill_s) * share
    return Traffic(text, window_s, calls, Piece(text, 0.0, window_s, warm_up_s, calls, work, prefill), None, ())


def _recorded(text: str, trace: Trace, profile: Profile, window_s: float, warm_up_s: float, folder: Path) -> Traffic:
    minutes = _minutes(trace, profile)
    whole, hour = len(minutes.calls), round(HOUR_S / BIN_S)
    window, warm_up = max(1, round(window_s / BIN_S)), ceil(warm_up_s / BIN_S)
    peak = minutes.busiest(0, whole, hour)
    busiest = minutes.piece(
        minutes.busiest(peak, min(whole, peak + hour), window), window, warm_up, folder / "busiest.jsonl"
    )
    around = minutes.piece(peak, hour, warm_up, folder / "peak-hour.jsonl")
    hours = tuple(_hours(minutes, hour, max(1, window // 4), warm_up, folder)) if whole > hour else ()
    peak_hour = around if around.length_s > busiest.length_s else None
    pieces = [busiest, *([] if peak_hour is None else [peak_hour]), *(one.sample for one in hours if one.calls)]
    _cut(trace, pieces)
    return Traffic(text, trace.timetable.span_s, sum(minutes.calls), busiest, peak_hour, hours)


def _minutes(trace: Trace, profile: Profile) -> Minutes:
    found = Minutes(profile, trace.timetable.first_s, trace.timetable.span_s)
    arrivals = (Arrival(number, row.at_s, row) for number, row in typed_rows(trace.path, trace.schema))
    for session in trace.schema.sessions(arrivals, Draws(stream(0, "content")), -inf, inf):
        found.add(session)
    return found


def _hours(minutes: Minutes, hour: int, sample: int, warm_up: int, folder: Path) -> Iterator[Hour]:
    for start in range(0, len(minutes.calls), hour):
        end = min(len(minutes.calls), start + hour)
        path = folder / f"hour-{start // hour}.jsonl"
        piece = minutes.piece(minutes.busiest(start, end, sample), min(sample, end - start), warm_up, path)
        calls, tokens = sum(minutes.calls[start:end]), sum(minutes.prompt_tokens[start:end])
        yield Hour(start * BIN_S, (end - start) * BIN_S, calls, tokens, piece)


def _cut(trace: Trace, pieces: Sequence[Piece]) -> None:
    """Write each piece with its warm-up as a trace of its own, in one pass over the rows."""
    first_s = trace.timetable.first_s
    spans = [(first_s + one.start_s - one.warm_up_s, first_s + one.start_s + one.length_s) for one in pieces]
    encode = msgspec.json.Encoder().encode
    with ExitStack() as stack, closing(records(trace.path)) as rows:
        files = [stack.enter_context(Path(one.trace).open("wb")) for one in pieces]
        for _, record in rows:
            row = msgspec.convert(trace.schema.named(record), trace.schema.row_type, strict=False)
            for (begin_s, end_s), file in zip(spans, files, strict=True):
                if begin_s <= row.at_s < end_s:
                    file.write(encode(record) + b"\n")
