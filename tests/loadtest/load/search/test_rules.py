import random

import pytest

from loadtest.load.search import rules as search
from loadtest.load.search.rules import Stop, Tried, highest_rate, knee


def fleet(capacity, requests=500, seed=1):
    """Return runs of a fleet whose attainment falls from 99 % to 0 between 0.9 and 1.1 of its capacity."""
    rng = random.Random(seed)

    def run(rate, factor):
        share = min(0.99, max(0.0, (1.1 - rate / capacity) * 5.0))
        met = sum(rng.random() < share for _ in range(requests * factor))
        return Tried(rate, met, requests * factor, saturated=rate > 1.3 * capacity)

    return run


@pytest.mark.parametrize("capacity", [0.3, 1.0, 7.0, 40.0])
def test_the_highest_rate_is_found_within_a_tenth(capacity):
    found = highest_rate(fleet(capacity), 1.0, 0.95, 0.01, 1_000.0)
    true = capacity * 0.91  # where the share is 95 %
    assert found.stop is Stop.CONVERGED
    assert found.holds <= found.fails <= found.holds * 1.1
    assert true / 1.12 <= found.holds <= true * 1.04 and len(found.runs) <= search.MOST_RUNS


def test_a_run_that_is_not_resolved_has_more_requests_the_next_time():
    asked = []

    def run(rate, factor):
        asked.append(factor)
        return Tried(rate, round(96 * factor), 100 * factor)

    highest_rate(run, 1.0, 0.95, 0.5, 1.0)
    assert asked[:3] == [1, 2, 4]


@pytest.mark.parametrize(
    ("run", "stop", "holds"),
    [
        (lambda rate, factor: Tried(rate, 0, 500), Stop.NEVER_HELD, None),
        (lambda rate, factor: Tried(rate, 500, 500), Stop.NEVER_FAILED, 8.0),
        (lambda rate, factor: Tried(rate, 500, 500, void=rate > 3.0), Stop.VOID, 2.0),
        (lambda rate, factor: Tried(rate, 500, 500, saturated=True), Stop.NEVER_HELD, None),
    ],
    ids=["never holds", "never fails", "the client is too slow", "overloaded"],
)
def test_a_search_says_why_it_stopped(run, stop, holds):
    found = highest_rate(run, 1.0, 0.95, 0.25, 8.0)
    assert (found.stop, found.holds) == (stop, holds)


STEPS = (1, 2, 4, 8, 16, 24, 32, 48, 64)


@pytest.mark.parametrize(
    ("curve", "at"),
    [
        (lambda n: min(n, 20) * 10.0, 20.0),  # it saturates
        (lambda n: n * 10.0, None),  # it grows to the end
        (lambda n: min(n, 24) * 10.0 - max(0, n - 24) * 4.0, 24.0),  # it falls behind the knee
        (lambda n: 100.0, None),  # it does not depend on the concurrency
    ],
    ids=["saturating", "linear", "cliff", "flat"],
)
def test_a_knee_is_found_where_there_is_one(curve, at):
    found = knee([(n, curve(n)) for n in STEPS])
    if at is None:
        assert found is None
    else:
        assert found.at == pytest.approx(at, rel=0.1) and found.reached >= at * 0.9


def test_few_points_have_no_knee():
    assert knee([(n, min(n, 2)) for n in (1, 2, 3, 4)]) is None
