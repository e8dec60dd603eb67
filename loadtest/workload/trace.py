"""A trace as a source of plans. It is read twice and never held, so memory grows with one window, not with the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from random import Random

from loadtest.workload.draw import Draws, stream
from loadtest.workload.errors import TraceError
from loadtest.workload.plan import Plan, Session, within
from loadtest.workload.rows import records
from loadtest.workload.schemas.known import described, recognise, typed_rows
from loadtest.workload.schemas.schema import Arrival, Schema

MOMENT_S = 1e-3
"""Added to the last arrival, so that it lies within the trace."""
LEAST_S, LARGEST_S = 1.0, 10.0
"""Smaller steps are the real times. Rows further apart than the largest step are so by chance."""

ROUNDING_S = 0.01
"""Mooncake's ticks of 3 s are off by up to 3 ms."""

MOST_GAPS = 1_000
"""Timestamps with more different gaps than this have no ticks."""


@dataclass(frozen=True, slots=True)
class Timetable:
    """The times of a trace's first and last row in seconds on its own clock, and its tick, 0 if it has none."""

    first_s: float
    last_s: float
    tick_s: float

    @property
    def end_s(self) -> float:
        """Every row has arrived before this time."""
        return self.last_s + (self.tick_s or MOMENT_S)

    @property
    def span_s(self) -> float:
        return self.end_s - self.first_s


@dataclass(frozen=True, slots=True)
class Trace:
    """A file of rows of a known schema; every row has been checked."""

    path: Path
    schema: Schema
    timetable: Timetable

    @classmethod
    def of(cls, path: Path, schema: Schema | None = None) -> Trace:
        """Return the trace in the file; its schema, unless it is given, is recognised from the first row.

        Raises:
            TraceError: the file cannot be read, its schema is unknown, or a row is wrong; says which row.
        """
        with closing(records(path)) as rows:
            _, record = next(rows, (0, None))
        if record is None:
            raise TraceError(f"{path} has a header and no rows")
        schema = schema or recognise(record)
        if schema is None:
            raise TraceError(f"{path}: no known schema has the fields {', '.join(record)}; known are {described()}")
        return cls(path, schema, timetable(path, schema))

    @property
    def name(self) -> str:
        """The file's name without its suffixes."""
        return self.path.name.split(".")[0]

    def draw(self, seed: int, length_s: float, faster: float = 1.0) -> Plan:
        """Draw a window of the trace, `length_s` long when it is replayed `faster` times as fast.

        The seed decides where the window begins, and where within their tick rows arrive. A trace that is shorter than
        the window is taken whole. The plan is then shorter too: it ends when the last call has been sent, if answers
        take no time. A faster rate does not shorten the pauses inside sessions.
        """
        length_trace_s = min(length_s * faster, self.timetable.span_s)
        slack_s = self.timetable.span_s - length_trace_s
        begin_s = self.timetable.first_s + stream(seed, "window").uniform(0.0, slack_s)
        arrivals, draws = self._arrivals(stream(seed, "jitter")), Draws(stream(seed, "content"))
        found = self.schema.sessions(arrivals, draws, begin_s, begin_s + length_trace_s)
        plan_s = length_trace_s / faster
        moved: Iterable[Session] = (replace(one, start_s=(one.start_s - begin_s) / faster) for one in found)
        if self.schema.closed_loop:
            moved = list(moved)
            plan_s = min(length_s, max([plan_s, *(one.last_s + MOMENT_S for one in moved)]))
        kept = (session for whole in moved if (session := within(whole, plan_s)))
        return Plan.of(self.name, kept, plan_s, self.schema.block_tokens)

    def _arrivals(self, jitter: Random) -> Iterator[Arrival]:
        for number, row in typed_rows(self.path, self.schema):
            late_s = jitter.uniform(0.0, self.timetable.tick_s)
            yield Arrival(number, row.at_s + late_s, row)


def timetable(path: Path, schema: Schema) -> Timetable:
    """Read the times of all rows.

    Raises:
        TraceError: a row is wrong.
    """
    first_s, last_s, ticks = inf, -inf, Ticks()
    for _, row in typed_rows(path, schema):
        first_s, last_s = min(first_s, row.at_s), max(last_s, row.at_s)
        ticks.see(row.at_s)
    return Timetable(first_s, last_s, ticks.step_s)


class Ticks:
    """Rounded timestamps of a trace. Replayed as they are, all rows of a tick would arrive at once.

    Reads the timestamps in order, and finds the distance between the ticks to which they were rounded.
    """

    def __init__(self) -> None:
        self._before_s: float | None = None
        self._gaps: set[int] = set()
        self._shared = False

    def see(self, at_s: float) -> None:
        gap = 0 if self._before_s is None else round(abs(at_s - self._before_s) / ROUNDING_S)
        if gap and len(self._gaps) <= MOST_GAPS:
            self._gaps.add(gap)
        self._shared |= self._before_s == at_s
        self._before_s = at_s

    @property
    def step_s(self) -> float:
        """Seconds between ticks; 0 if no two rows share a timestamp, or if gaps are no multiples of the least gap."""
        step = min(self._gaps, default=0)
        regular = len(self._gaps) <= MOST_GAPS and all(_multiple(gap, step) for gap in self._gaps)
        step_s = step * ROUNDING_S
        return step_s if self._shared and regular and LEAST_S <= step_s <= LARGEST_S else 0.0


def _multiple(gap: int, step: int) -> bool:
    rest = gap % step
    # Two rounded timestamps put a gap off by up to one ROUNDING_S, in either direction.
    return min(rest, step - rest) <= 1
