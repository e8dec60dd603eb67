"""A decision log as a trace: when each request arrived, its prompt in blocks, and the length of its answer.

The log has hashes of prompts and no text. Times without a record, as in a log of samples, are left out of the trace.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import inf
from pathlib import Path
from statistics import fmean

import msgspec

from loadtest.workload.errors import WorkloadError
from loadtest.workload.schemas.sized_blocks import BLOCK_TOKENS
from policies.view import LifecycleEventKind
from router.cli.replay import log_lines
from router.placement.decision_log.lines import (
    VERSION,
    DecisionLine,
    EventLine,
    Line,
    SnapshotLine,
    decode,
    unpacked,
)
from router.placement.decision_log.recorder import keep

GAP_S = 1.0
"""Two periods of a log that are no further apart have no gap between them."""
MOST_RUNNING = 65_536
"""Requests whose ends are awaited. Beyond them, the oldest one counts as unfinished."""


class LoggedRow(msgspec.Struct, omit_defaults=True):
    """A row of the trace. `timestamp` is in ms. `output_length` is missing until it is known."""

    timestamp: float
    input_length: int
    hash_ids: list[int]
    block_size: int
    output_length: int | None = None


def log_trace(files: Sequence[Path], path: Path, last_s: float | None = None) -> None:
    """Write the requests of the files, of one process or of several, into `path` as a trace.

    Requests without a known end get the mean length of the other answers. With `last_s`, only those count that came in
    the last seconds before the latest line of all files.

    Raises:
        WorkloadError: a file cannot be read, or has no request with the length of its answer.
    """
    raw = path.with_suffix(".raw")
    periods: list[tuple[float, float]] = []
    answers: list[int] = []
    encode = msgspec.json.Encoder().encode
    with raw.open("wb") as out:
        for file in files:
            reader = LogReader(file)
            for row in reader.rows():
                if row.output_length is not None:
                    answers.append(row.output_length)
                out.write(encode(row) + b"\n")
            periods += reader.periods
    if not answers:
        raise WorkloadError(
            f"{', '.join(map(str, files))}: no request has the length of its answer; record the log with this release,"
            " and let workers report usage (observe_usage)"
        )
    clock, usual = Recorded(periods), round(fmean(answers))
    from_s = -inf if last_s is None else max(end_s for _, end_s in periods) - last_s
    with raw.open("rb") as found, path.open("wb") as out:
        for line in found:
            row = msgspec.json.decode(line, type=LoggedRow)
            if row.timestamp < from_s * 1e3:
                continue
            row.timestamp = clock.at_s(row.timestamp / 1e3) * 1e3
            row.output_length = usual if row.output_length is None else row.output_length
            out.write(encode(row) + b"\n")
    raw.unlink()


class Recorded:
    """The time of a log without its gaps: seconds of record up to a moment."""

    def __init__(self, periods: Iterable[tuple[float, float]]) -> None:
        joined: list[list[float]] = []
        for begin_s, end_s in sorted(periods):
            if joined and begin_s <= joined[-1][1] + GAP_S:
                joined[-1][1] = max(joined[-1][1], end_s)
            else:
                joined.append([begin_s, end_s])
        self._begins_s = [begin_s for begin_s, _ in joined]
        self._before_s = [0.0, *accumulate(end_s - begin_s for begin_s, end_s in joined)]

    def at_s(self, wall_s: float) -> float:
        place = max(0, bisect_right(self._begins_s, wall_s) - 1)
        return self._before_s[place] + max(0.0, wall_s - self._begins_s[place])


class LogReader:
    """Reads one file. `periods` are the recorded stretches of Unix time."""

    def __init__(self, path: Path) -> None:
        self.periods: list[tuple[float, float]] = []
        self._path = path
        self._prompts: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        self._running: OrderedDict[str, LoggedRow] = OrderedDict()
        self._wall_less_clock_s = 0.0

    def rows(self) -> Iterator[LoggedRow]:
        """Yield each request as it ends, with its arrival in Unix time; at the end those that did not.

        Raises:
            WorkloadError: the file cannot be read.
        """
        number = 0
        try:
            for text in log_lines([self._path]):
                number += 1
                row = self._read(decode(text))
                if row is not None:
                    yield row
        except OSError as error:
            raise WorkloadError(f"{self._path} cannot be read: {error.strerror or error}") from None
        except (msgspec.DecodeError, KeyError, ValueError) as error:
            raise WorkloadError(f"{self._path}, line {number}: not of a decision log: {error}") from None
        yield from self._running.values()

    def _read(self, line: Line) -> LoggedRow | None:
        if isinstance(line, SnapshotLine):
            self._begin(line)
            return None
        if isinstance(line, DecisionLine | EventLine):
            wall_s = line.now_s + self._wall_less_clock_s
            self.periods[-1] = (self.periods[-1][0], max(wall_s, self.periods[-1][1]))
            return self._decision(line, wall_s) if isinstance(line, DecisionLine) else self._event(line)
        return None

    def _begin(self, line: SnapshotLine) -> None:
        if line.version != VERSION:
            raise ValueError(f"it has version {line.version}, and this release reads version {VERSION}")
        self._prompts.clear()
        self._wall_less_clock_s = line.wall_s - line.at_s
        self.periods.append((line.wall_s, line.wall_s))

    def _decision(self, line: DecisionLine, wall_s: float) -> LoggedRow | None:
        """Note a request. One that is decided about again, after a hold or a failure, is the same request."""
        prompt, request = line.prompt, line.request
        known = self._prompts[prompt.base][: prompt.kept] if prompt.base else ()
        hashes = known + unpacked(prompt.added)
        keep(self._prompts, line.number, hashes)
        if request.id in self._running or not request.prompt_tokens:
            return None
        size = request.block_tokens or BLOCK_TOKENS
        several = max(1, BLOCK_TOKENS // size)
        # A chained hash stands for all text before it, so each one of several names those blocks together.
        ids = [hash_ >> 2 for hash_ in hashes[several - 1 :: several]]
        block = size * several
        full = request.prompt_tokens // block
        if len(ids) < full:  # no identity: the prompt is new text in one block
            ids, block = [], request.prompt_tokens + 1
        self._running[request.id] = LoggedRow(
            (wall_s - request.waited_s) * 1e3, request.prompt_tokens, ids[:full], block
        )
        return self._running.popitem(last=False)[1] if len(self._running) > MOST_RUNNING else None

    def _event(self, line: EventLine) -> LoggedRow | None:
        if line.kind is not LifecycleEventKind.FINISHED:
            return None
        row = self._running.pop(line.request_id, None)
        if row is not None and line.output_tokens is not None:
            row.output_length = line.output_tokens
        return row
