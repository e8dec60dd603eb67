import pytest

from router.placement.retry_budget import WINDOW_S, AttemptBudget


def paid(budget, attempts, requests, now_s):
    return sum(budget.take(requests, now_s) for _ in range(attempts))


def test_a_quiet_gateway_may_retry_from_the_start_and_at_the_floor_from_then_on():
    budget = AttemptBudget(0.2, 3.0)
    assert paid(budget, 200, 0, 100.0) == 3 * WINDOW_S
    assert paid(budget, 200, 0, 101.0) == 3
    assert paid(budget, 200, 0, 105.0) == 12
    assert budget.statistics()["refused"] == 200 * 3 - 105


def test_in_the_long_run_a_share_of_the_requests_is_paid_for():
    budget = AttemptBudget(0.2, 0.0)
    requests = granted = 0
    for second in range(600):  # a failing fleet: every request fails once
        requests += 50
        granted += paid(budget, 50, requests, float(second))
    assert granted / requests == pytest.approx(0.2, rel=0.05)


def test_savings_are_bounded_by_the_traffic_of_the_window():
    budget = AttemptBudget(0.2, 0.0)
    requests = 0
    for second in range(300):  # no failure for five minutes
        requests += 100
        budget.take(requests, float(second))
    burst = paid(budget, 10_000, requests, 300.0)
    assert burst == pytest.approx(0.2 * 100 * WINDOW_S, rel=0.05)
    # an hour without a request: the balance falls to its minimum of one attempt
    assert paid(budget, 10, requests, 4_000.0) == 0
    assert paid(budget, 10, requests + 100, 4_001.0) >= 1


def test_nothing_is_paid_where_nothing_is_allowed():
    budget = AttemptBudget(0.0, 0.0)
    assert paid(budget, 5, 1_000, 0.0) == 0
    assert paid(budget, 5, 9_000, 50.0) == 0


def test_a_clock_that_steps_back_fills_nothing():
    budget = AttemptBudget(0.0, 1.0)
    assert paid(budget, 100, 0, 50.0) == WINDOW_S
    assert paid(budget, 100, 0, 40.0) == 0
    assert paid(budget, 100, 0, 51.0) == 1
