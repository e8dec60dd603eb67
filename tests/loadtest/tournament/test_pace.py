from dataclasses import replace
from math import inf

import msgspec
import pytest

from loadtest.lab.measures import Figures, Measured, Measures
from loadtest.lab.store import Result
from loadtest.tournament.contests import CONTESTS, Extent
from loadtest.tournament.pace import TRIES, Course, Pace, duration

EXTENT = Extent(("lpwl", "random"), (0.5, 1.0), 3, 60.0)
FIGURES = msgspec.convert({field.name: 1 for field in msgspec.structs.fields(Figures) if field.required}, Figures)
MEASURES = Measures(FIGURES, {}, 1.0, 1.0, 0, 1.0, 1.0, [1.0])
TRACE, AGENTS = CONTESTS[0], CONTESTS[1]
SEARCH = 2 * 3 * TRIES
"""Two rules, three seeds."""


def course(contest):
    return Course(contest, EXTENT.study(contest, contest.trace))


def result(digest, rate, wall_s):
    return Result(digest, "code", {"rate": rate}, MEASURES, Measured(1.0, 1.0, 1.0, wall_s, wall_s, 1.0))


def test_nothing_is_known_before_a_cell_is_timed():
    pace = Pace([course(AGENTS)], 2)
    assert pace.left_s() == inf and pace.share() == 0.0


def test_a_generators_cells_grow_with_the_rate_and_a_traces_do_not():
    agents, trace = course(AGENTS), course(TRACE)
    assert agents.cells_size(2.0) == pytest.approx(2 * 3 * (1.0 + 2.0))
    assert trace.cells_size(2.0) == pytest.approx(2 * 3 * 2)


def test_a_first_cell_says_how_long_the_rest_takes():
    pace = Pace([course(AGENTS)], 2)
    pace.done("agents", result("x", 1.0, 4.0))
    left = SEARCH + 2 * 3 * 1.5 - 1.0
    assert pace.left_s() == pytest.approx(left * 4.0 / 2)
    assert pace.share() == pytest.approx(2.0 / (2.0 + left * 4.0 / 2))


def test_a_cell_heard_of_twice_counts_once():
    pace = Pace([course(AGENTS)], 1)
    for _ in range(2):
        pace.done("agents", result("x", 1.0, 4.0))
    assert pace.statistics() == {"cells": 1, "took_s": 4.0}


def test_with_load_1_known_only_the_cells_are_left():
    pace = Pace([course(AGENTS)], 1)
    pace.done("agents", result("x", 1.0, 4.0))
    pace.saturated("agents", 2.0)
    assert pace.left_s() == pytest.approx(2 * 3 * 3.0 * 4.0)
    for number, (rate, seed) in enumerate((rate, seed) for rate in (1.0, 2.0) for seed in range(6)):
        pace.done("agents", result(f"{number} {seed}", rate, 4.0 * rate))
    assert pace.left_s() == 0.0 and pace.share() == 1.0


def test_a_course_of_which_nothing_is_known_is_taken_to_be_like_the_others():
    pace = Pace([course(AGENTS), course(replace(AGENTS, name="twin"))], 1)
    pace.done("agents", result("x", 1.0, 4.0))
    assert pace.left_s() == pytest.approx((2 * (SEARCH + 9.0) - 1.0) * 4.0)


def test_durations_are_said_in_hours_and_minutes():
    assert [duration(s) for s in (10.0, 600.0, 3_599.0, 10_000.0)] == [
        "under a minute",
        "about 10 min",
        "about 1 h 00 min",
        "about 2 h 47 min",
    ]
