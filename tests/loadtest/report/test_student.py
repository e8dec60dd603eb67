"""Against tables and closed forms."""

from math import atan, inf, pi, sqrt

import pytest

from loadtest.report.student import above, point


@pytest.mark.parametrize("t", [-30.0, -2.0, -0.1, 0.0, 0.3, 1.0, 7.0])
def test_one_and_two_degrees_have_closed_forms(t):
    assert above(t, 1) == pytest.approx(0.5 - atan(t) / pi, abs=1e-12)
    assert above(t, 2) == pytest.approx(0.5 - t / (2 * sqrt(2 + t * t)), abs=1e-12)


@pytest.mark.parametrize(
    ("tail", "freedom", "expected"),
    [(0.025, 9, 2.262157), (0.05, 9, 1.833113), (0.005, 9, 3.249836), (0.025, 29, 2.045230), (0.025, 1, 12.706205)],
)
def test_points_are_those_of_the_tables(tail, freedom, expected):
    assert point(tail, freedom) == pytest.approx(expected, rel=1e-6)


def test_the_ends():
    assert above(inf, 3) == 0.0
    assert above(-inf, 3) == 1.0
    assert above(1e9, 9) < 1e-20
