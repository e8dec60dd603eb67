import math
import statistics

import pytest

from loadtest.report.confidence import half_width, interval


def test_the_interval_of_two_values_is_the_one_worked_out_by_hand():
    found = interval([1.0, 3.0])
    assert (found.mean, found.half) == (2.0, pytest.approx(12.7062, rel=1e-5))


@pytest.mark.parametrize(("count", "t"), [(2, 12.706205), (10, 2.262157), (30, 2.045230)])
def test_the_half_width_uses_students_t_as_tables_give_it(count, t):
    values = [float(number % 2) for number in range(count)]
    assert half_width(values) == pytest.approx(t * statistics.stdev(values) / math.sqrt(count), rel=1e-6)


def test_more_values_narrow_the_interval():
    assert interval([1.0, 3.0] * 10).half < interval([1.0, 3.0] * 2).half


def test_one_value_has_no_interval():
    assert math.isnan(interval([5.0]).half)
    with pytest.raises(statistics.StatisticsError):
        half_width([5.0])
