import pytest

from router.config.model import HealthConfig, RetriesConfig
from router.errors import ErrorKind
from router.placement import retry_budget
from router.placement.request import FailurePoint, Request, Usage
from router.placement.retry_budget import WINDOW_S, AttemptBudget
from router.placement.tickets import Reject, Ticket

PHASES = (FailurePoint.SENT, FailurePoint.REFUSED, FailurePoint.UNSERVED, FailurePoint.ANSWERED)


@pytest.fixture
def build(make_rig):
    def make(workers=4, **options):
        return make_rig(
            workers=workers, policy="least_requests", health=HealthConfig(failure_threshold=1_000), **options
        ).core

    return make


def refused(core):
    return sum(core.dispatcher._budget._refusals.values.values())


def ask(number=0):
    return Request(f"r{number}", "/v1/completions", "m", None, 100, 0.0)


def load(core):
    return [load["running_requests"] for load in core.statistics()["workers"].values()]


# the retry budget


@pytest.mark.parametrize("point", PHASES)
def test_without_budget_the_client_gets_the_error_it_would_get_alone(build, point):
    poor = build(retries=RetriesConfig(budget_ratio=0.0))
    lonely = build(workers=1)
    answers = [
        each.dispatcher.retry(each.dispatcher.dispatch(ask(), 0.0), point, 0.0, "why") for each in (poor, lonely)
    ]
    assert all(isinstance(answer, Reject) for answer in answers)
    assert answers[0].error.kind is answers[1].error.kind
    assert str(answers[0].error) == str(answers[1].error)
    assert (refused(poor), refused(lonely)) == (1, 0)
    assert load(poor) == [0, 0, 0, 0]


def test_a_connection_that_could_not_be_made_is_free(build):
    poor = build(retries=RetriesConfig(budget_ratio=0.0))
    again = poor.dispatcher.retry(poor.dispatcher.dispatch(ask(), 0.0), FailurePoint.CONNECT, 0.0, "refused")
    assert isinstance(again, Ticket)
    assert refused(poor) == 0


def test_a_sick_fleet_is_not_stormed(build, monkeypatch):
    monkeypatch.setattr(retry_budget, "_FLOOR_PER_S", 0.0)
    core = build(retries=RetriesConfig(budget_ratio=0.2))
    attempts = 0
    for number in range(3_000):
        now_s = number / 50
        ticket = core.dispatcher.dispatch(ask(number), now_s)
        while isinstance(ticket, Ticket):
            attempts += 1
            ticket = core.dispatcher.retry(ticket, FailurePoint.ANSWERED, now_s, "500")
    assert attempts == pytest.approx(3_000 * 1.2, rel=0.05)
    assert load(core) == [0, 0, 0, 0]


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_as_many_attempts_as_configured(build, limit):
    core = build(retries=RetriesConfig(max_attempts=limit))
    ticket, attempts = core.dispatcher.dispatch(ask(), 0.0), 0
    while isinstance(ticket, Ticket):
        attempts += 1
        ticket = core.dispatcher.retry(ticket, FailurePoint.CONNECT, 0.0, "refused")
    assert attempts == limit


# a limit per worker


def test_no_worker_gets_more_than_its_limit(build):
    core = build(max_requests_per_worker=2)
    tickets = [core.dispatcher.dispatch(ask(number), 0.0) for number in range(8)]
    assert load(core) == [2, 2, 2, 2]
    refused = core.dispatcher.dispatch(ask(9), 0.0)
    assert isinstance(refused, Reject)
    assert refused.error.kind is ErrorKind.OVERLOADED
    assert refused.error.retry_after_s == 1.0
    core.tickets.finished(tickets[5], Usage(), 1.0)
    again = core.dispatcher.dispatch(ask(10), 1.0)
    assert again.candidate is tickets[5].candidate


def test_a_retry_keeps_to_the_limit_too(build):
    core = build(workers=2, max_requests_per_worker=1)
    first, _ = core.dispatcher.dispatch(ask(0), 0.0), core.dispatcher.dispatch(ask(1), 0.0)
    assert isinstance(core.dispatcher.retry(first, FailurePoint.SENT, 0.0, "died"), Reject)
    assert sorted(load(core)) == [0, 1]


def test_explain_keeps_to_the_limit_too(build):
    core = build(workers=2, max_requests_per_worker=1)
    ticket = core.dispatcher.dispatch(ask(0), 0.0)
    explained = core.explainer.explain(ask(1), 0.0)
    assert explained.action == "dispatch" and explained.choice != ticket.candidate.id
    assert explained.excluded == {ticket.candidate.id: "its requests have reached limits.max_requests_per_worker (1)"}
    core.dispatcher.dispatch(ask(1), 0.0)
    explained, refused = core.explainer.explain(ask(2), 0.0), core.dispatcher.dispatch(ask(2), 0.0)
    assert (explained.action, explained.choice, explained.reason) == ("reject", None, refused.error.message)
    assert len(explained.excluded) == 2


# the bucket


def paid(budget, attempts, requests, now_s):
    return sum(budget.take(requests, now_s) for _ in range(attempts))


def test_a_quiet_gateway_may_retry_from_the_start_and_at_the_floor_from_then_on():
    budget = AttemptBudget(0.2, 3.0)
    assert paid(budget, 200, 0, 100.0) == 3 * WINDOW_S
    assert paid(budget, 200, 0, 101.0) == 3
    assert paid(budget, 200, 0, 105.0) == 12


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
