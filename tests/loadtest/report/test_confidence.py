import math

import pytest

from loadtest.report.confidence import interval


def test_an_interval_by_hand():
    """Two values a and b: mean +- 12.706 * |a - b| / 2."""
    found = interval([1.0, 3.0])
    assert (found.mean, found.half) == (2.0, pytest.approx(12.7062, rel=1e-5))
    assert (found.low, found.high) == (pytest.approx(-10.7062, rel=1e-5), pytest.approx(14.7062, rel=1e-5))


def test_more_values_narrow_it_and_one_says_nothing():
    assert interval([1.0, 3.0] * 10).half < interval([1.0, 3.0] * 2).half
    assert math.isnan(interval([5.0]).half)
