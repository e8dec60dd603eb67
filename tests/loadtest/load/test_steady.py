"""Overload is seen within a minute, and load below capacity is none. The endpoint is a queue with constant service."""

import random

import pytest
from scipy.special import stdtrit

from loadtest.load.records import Record
from loadtest.load.steady import lag_problem, saturation_of, slope, t_975

SERVICE_S = 0.1


def queue(load, duration_s, seed, servers=4):
    """Return the records of Poisson arrivals at `load` times the capacity of `servers`."""
    rng, free_s, at_s = random.Random(seed), [0.0] * servers, 0.0
    records = []
    while (at_s := at_s + rng.expovariate(load * servers / SERVICE_S)) < duration_s:
        start_s = max(at_s, free_s[0])
        free_s = sorted([*free_s[1:], start_s + SERVICE_S])
        ended_s = start_s + SERVICE_S
        records.append(
            Record(id="", kind="", turn=0, intended_s=at_s, sent_s=at_s, token_s=[start_s + 0.05], ended_s=ended_s)
        )
    return records


@pytest.mark.parametrize("seed", range(20))
def test_a_fifth_above_capacity_is_saturated_within_a_minute_and_a_fifth_below_is_not(seed):
    found = saturation_of(queue(1.2, 60.0, seed))
    assert found is not None
    assert found.piled_share == pytest.approx(1 / 6, abs=0.05)
    assert saturation_of(queue(0.8, 60.0, seed)) is None


def test_a_queue_of_one_server_waits_as_theory_says():
    waits = [one.ttft_s - 0.05 for one in queue(0.7, 40_000.0, 1, servers=1)]
    assert sum(waits) / len(waits) == pytest.approx(0.7 * SERVICE_S / (2 * 0.3), rel=0.03)


def test_a_few_requests_say_nothing():
    assert saturation_of(queue(1.5, 0.5, 1)) is None


@pytest.mark.parametrize("points", [12, 13, 30, 432])
def test_a_slopes_interval_is_that_of_its_number_of_points(points):
    assert t_975(points - 2) == pytest.approx(-stdtrit(points - 2, 0.025), rel=1e-4)
    rng = random.Random(1)
    found = [slope(range(points), [rng.gauss(0.0, 1.0) for _ in range(points)]) for _ in range(2_000)]
    assert sum(one.low_per_s > 0.0 for one in found) / 2_000 == pytest.approx(0.025, abs=0.011)


@pytest.mark.parametrize(("lag_s", "void"), [(0.0004, False), (0.0006, True)])
def test_a_client_that_is_late_by_more_than_a_hundredth_of_ttft_voids_the_run(lag_s, void):
    assert bool(lag_problem([lag_s] * 1_000, queue(0.001, 2_000.0, 1))) is void
