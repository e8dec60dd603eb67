"""Estimate the time left from the times of finished cells and the sizes of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.lab.cell import Cell
from loadtest.lab.saturation import SEEDS, Run, Saturation
from loadtest.lab.store import Result
from loadtest.lab.study import Study
from loadtest.tournament.contests import Contest

TRIES = 8
"""Rates that a bisection tries, from a start near its end: two or three to bracket it, six to halve to 2 %."""
_RULES = 2
"""Each contest has two bisections: for load 1.0, and for round robin's saturation."""


@dataclass(frozen=True, slots=True)
class Course:
    """A contest to be played; `load_1` if it is known before."""

    contest: Contest
    study: Study
    load_1: Saturation | None = None

    def first(self) -> Cell:
        return self.study.first() if self.load_1 is None else self.study.cells(self.load_1)[0]

    def saturations(self, run: Run) -> tuple[Saturation, Saturation | None]:
        """Return load 1.0, and round robin's saturation if load 1.0 was not known.

        Raises:
            SaturationError: there is no load 1.0.
        """
        return self.study.saturations(run) if self.load_1 is None else (self.load_1, None)

    def tries(self) -> int:
        """Return about how many cells the search for load 1.0 plays."""
        return _RULES * SEEDS * TRIES if self.load_1 is None else 0

    def size(self, rate: float) -> float:
        """Return a cell's calls relative to those at rate 1. A trace's window holds the same calls at every rate."""
        return 1.0 if self.contest.recorded else rate

    def cells_size(self, rate: float) -> float:
        """Return the size of all cells, with load 1.0 at `rate`."""
        asked = self.study
        return len(asked.policies) * asked.seeds * sum(self.size(rate * load) for load in asked.loads)


class Pace:
    """The work left in the courses, in seconds of this machine with `jobs` processes.

    Within a course, a cell's seconds are assumed to grow with its calls. A course without a finished cell is assumed
    to cost the mean of the others per unit of size.
    """

    def __init__(self, courses: Sequence[Course], jobs: int) -> None:
        self._courses = {course.contest.name: course for course in courses}
        self._jobs = jobs
        self._seen: dict[str, tuple[float, float]] = {}
        self._counted: set[str] = set()
        self._left = {name: course.tries() + course.cells_size(1.0) for name, course in self._courses.items()}

    def done(self, name: str, result: Result) -> None:
        """Count a finished cell or try of the bisection, from this run or an earlier one. Each counts once."""
        if result.digest in self._counted:
            return
        self._counted.add(result.digest)
        size = self._courses[name].size(result.cell["rate"])
        took_s, sizes = self._seen.get(name, (0.0, 0.0))
        self._seen[name] = (took_s + result.measured.wall_s, sizes + size)
        self._left[name] = max(0.0, self._left[name] - size)

    def saturated(self, name: str, rate: float) -> None:
        """Note that a course's load 1.0 is known. No tries are left, and the sizes of its cells are known."""
        self._left[name] = self._courses[name].cells_size(rate)

    def left_s(self) -> float:
        """Return the seconds until everything is done; infinity before the first cell."""
        if not self._seen:
            return float("inf")
        each = {name: took_s / size for name, (took_s, size) in self._seen.items() if size}
        usual = sum(each.values()) / len(each)
        return sum(left * each.get(name, usual) for name, left in self._left.items()) / self._jobs

    def share(self) -> float:
        """Return the share that is done, by time."""
        spent_s = sum(took_s for took_s, _ in self._seen.values()) / self._jobs
        return spent_s / (spent_s + self.left_s()) if spent_s else 0.0

    def statistics(self) -> dict[str, float]:
        """Count the cells and tries that are done, and the sum of their seconds."""
        return {"cells": len(self._counted), "took_s": sum(took_s for took_s, _ in self._seen.values())}


def duration(seconds: float) -> str:
    """Return a rounded duration in hours and minutes."""
    minutes = round(seconds / 60.0)
    if minutes < 1:
        return "under a minute"
    return f"about {minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"about {minutes} min"
