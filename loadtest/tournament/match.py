"""Play the contests: load 1.0 of each, then its cells, with an estimate of the time left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from loadtest.lab.cell import Cell
from loadtest.lab.findings import Findings
from loadtest.lab.store import Result
from loadtest.lab.sweep import Sweep
from loadtest.tournament.pace import Course, Pace, duration

Report = Callable[[str], None]
"""Receives a line of progress: each step for the status line, or a result worth a line of its own."""


@dataclass(frozen=True, slots=True)
class Played:
    course: Course
    findings: Findings


class Games:
    """Plays courses one after the other; the sweep's store keeps all cells."""

    def __init__(self, courses: Sequence[Course], sweep: Sweep, pace: Pace, report: Report, tell: Report) -> None:
        self._courses = courses
        self._sweep = sweep
        self._pace = pace
        self._report = report
        self._tell = tell

    def firsts(self) -> None:
        """Run the first cell of each course; their times give the estimate."""
        courses = {course.study.trace: course for course in self._courses}

        def heard(result: Result) -> None:
            course = courses[result.cell["trace"]]
            self._pace.done(course.contest.name, result)
            self._report(f"{course.contest.title}: first cell")

        self._report("first cells")
        self._sweep.results([course.first() for course in self._courses], heard)

    def play(self) -> list[Played]:
        return [Played(course, self._play(course)) for course in self._courses]

    def _play(self, course: Course) -> Findings:
        asked = course.study
        one, robin = course.saturations(partial(self._tried, course))
        self._pace.saturated(course.contest.name, one.rate)
        left = duration(self._pace.left_s())
        self._tell(f"{course.contest.title}: load 1.0 is {one.arrivals_per_s:.2f} calls/s; {left} left of all")
        cells = asked.cells(one)
        return asked.findings(one, robin, self._results(course, "cells", cells))

    def _tried(self, course: Course, cells: list[Cell]) -> list[Result]:
        return self._results(course, f"load 1.0, {cells[0].policy} at {cells[0].rate:.2f} x", cells)

    def _results(self, course: Course, what: str, cells: list[Cell]) -> list[Result]:
        found = 0

        def heard(result: Result) -> None:
            nonlocal found
            found += 1
            self._pace.done(course.contest.name, result)
            self._report(f"{course.contest.title}: {what}, {found} of {len(cells)}")

        return self._sweep.results(cells, heard)
