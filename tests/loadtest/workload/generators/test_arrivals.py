from itertools import islice
from random import Random
from statistics import mean, pvariance

import pytest

from loadtest.workload.generators.arrivals import Bursts, arrivals

NONE = Bursts(1.0, 0.1, 20.0)


def counts(times, end_s, width_s=10.0):
    bins = [0] * int(end_s / width_s)
    for at_s in times:
        bins[int(at_s / width_s)] += 1
    return bins


def test_without_bursts_it_is_a_poisson_process():
    times = list(arrivals(Random(0), 3.0, NONE, 0.0, 20_000.0))
    assert times == sorted(times) and times[0] >= 0.0 and times[-1] < 20_000.0
    binned = counts(times, 20_000.0)
    assert mean(binned) == pytest.approx(30.0, rel=0.03)
    assert pvariance(binned) / mean(binned) == pytest.approx(1.0, abs=0.15)


def test_another_rate_moves_the_same_arrivals():
    slow = list(islice(arrivals(Random(4), 1.0, NONE, 0.0, 1e9), 50))
    fast = list(islice(arrivals(Random(4), 5.0, NONE, 0.0, 1e9), 50))
    assert fast == pytest.approx([at_s / 5 for at_s in slow])


@pytest.mark.parametrize("bursts", [Bursts(5.0, 0.1, 20.0), Bursts(10.0, 0.1, 20.0), Bursts(2.0, 0.5, 5.0)])
def test_bursts_keep_the_mean_rate_and_are_bursts(bursts):
    binned = counts(arrivals(Random(1), 3.0, bursts, 0.0, 60_000.0), 60_000.0)
    assert mean(binned) == pytest.approx(30.0, rel=0.1)
    assert pvariance(binned) / mean(binned) > 4.0


def test_between_bursts_of_all_there_is_nothing_comes():
    bursts = Bursts(4.0, 0.25, 10.0)
    assert bursts.quiet_ratio == 0.0 and bursts.quiet_s == 30.0
    binned = counts(arrivals(Random(1), 3.0, bursts, 0.0, 10_000.0), 10_000.0, width_s=1.0)
    assert 0.6 < binned.count(0) / len(binned) < 0.85
