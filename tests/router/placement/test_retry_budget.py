import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.worker import Endpoint
from policies.registry import build_policy
from policies.spec import PolicySpec
from router.config.model import HealthConfig, RetriesConfig
from router.errors import ErrorKind
from router.metrics.registry import Registry
from router.placement import retry_budget
from router.placement.dispatcher import Dispatcher, Reject, Ticket
from router.placement.fleet.fleet import Fleet
from router.placement.request import FailurePoint, Request, Usage

PHASES = (FailurePoint.SENT, FailurePoint.REFUSED, FailurePoint.UNSERVED, FailurePoint.ANSWERED)


@pytest.fixture
def build(shadow_residency, facts):
    def make(workers=4, **options):
        fleet = Fleet(HealthConfig(failure_threshold=1_000), shadow_residency)
        for port in range(1, workers + 1):
            fleet.add(Endpoint("http", "h", port), 0.0)
            fleet.probe_succeeded(f"h:{port}", facts(), 0.0)
        registry = Registry()
        policy = build_policy(PolicySpec("least_requests"), random.Random(0))
        dispatcher = Dispatcher(
            fleet, shadow_residency, policy, spec=PolicySpec("least_requests"), registry=registry, **options
        )
        dispatcher.refused, dispatcher.fleet = registry.counter("retry_budget_exhausted").values, fleet
        return dispatcher

    return make


def ask(number=0):
    return Request(f"r{number}", "/v1/completions", "m", None, 100, 0.0)


def load(dispatcher):
    return [load["running_requests"] for load in dispatcher.statistics()["workers"].values()]


# the retry budget


@pytest.mark.parametrize("point", PHASES)
def test_without_budget_the_client_gets_the_error_it_would_get_alone(build, point):
    poor = build(retries=RetriesConfig(budget_ratio=0.0))
    lonely = build(workers=1)
    answers = [each.retry(each.dispatch(ask(), 0.0), point, 0.0, "why") for each in (poor, lonely)]
    assert all(isinstance(answer, Reject) for answer in answers)
    assert answers[0].error.kind is answers[1].error.kind
    assert str(answers[0].error) == str(answers[1].error)
    assert (poor.refused, lonely.refused) == ({(): 1}, {})
    assert load(poor) == [0, 0, 0, 0]


def test_a_connection_that_could_not_be_made_is_free(build):
    poor = build(retries=RetriesConfig(budget_ratio=0.0))
    again = poor.retry(poor.dispatch(ask(), 0.0), FailurePoint.CONNECT, 0.0, "refused")
    assert isinstance(again, Ticket)
    assert poor.refused == {}


def test_a_sick_fleet_is_not_stormed(build, monkeypatch):
    monkeypatch.setattr(retry_budget, "_FLOOR_PER_S", 0.0)
    dispatcher = build(retries=RetriesConfig(budget_ratio=0.2))
    attempts = 0
    for number in range(3_000):
        now_s = number / 50
        ticket = dispatcher.dispatch(ask(number), now_s)
        while isinstance(ticket, Ticket):
            attempts += 1
            ticket = dispatcher.retry(ticket, FailurePoint.ANSWERED, now_s, "500")
    assert attempts == pytest.approx(3_000 * 1.2, rel=0.05)
    assert load(dispatcher) == [0, 0, 0, 0]


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_as_many_attempts_as_configured(build, limit):
    dispatcher = build(retries=RetriesConfig(max_attempts=limit))
    ticket, attempts = dispatcher.dispatch(ask(), 0.0), 0
    while isinstance(ticket, Ticket):
        attempts += 1
        ticket = dispatcher.retry(ticket, FailurePoint.CONNECT, 0.0, "refused")
    assert attempts == limit


# a limit per worker


def test_no_worker_gets_more_than_its_limit(build):
    dispatcher = build(max_requests_per_worker=2)
    tickets = [dispatcher.dispatch(ask(number), 0.0) for number in range(8)]
    assert load(dispatcher) == [2, 2, 2, 2]
    refused = dispatcher.dispatch(ask(9), 0.0)
    assert isinstance(refused, Reject)
    assert refused.error.kind is ErrorKind.OVERLOADED
    assert refused.error.retry_after_s == 1.0
    dispatcher.finished(tickets[5], Usage(), 1.0)
    again = dispatcher.dispatch(ask(10), 1.0)
    assert again.candidate is tickets[5].candidate


def test_a_retry_keeps_to_the_limit_too(build):
    dispatcher = build(workers=2, max_requests_per_worker=1)
    first, _ = dispatcher.dispatch(ask(0), 0.0), dispatcher.dispatch(ask(1), 0.0)
    assert isinstance(dispatcher.retry(first, FailurePoint.SENT, 0.0, "died"), Reject)
    assert sorted(load(dispatcher)) == [0, 1]


def test_explain_keeps_to_the_limit_too(build):
    dispatcher = build(workers=2, max_requests_per_worker=1)
    ticket = dispatcher.dispatch(ask(0), 0.0)
    explained = dispatcher.explain(ask(1), 0.0)
    assert explained.action == "dispatch" and explained.choice != ticket.candidate.id
    assert explained.excluded == {ticket.candidate.id: "its requests have reached limits.max_requests_per_worker (1)"}
    dispatcher.dispatch(ask(1), 0.0)
    explained, refused = dispatcher.explain(ask(2), 0.0), dispatcher.dispatch(ask(2), 0.0)
    assert (explained.action, explained.choice, explained.reason) == ("reject", None, refused.error.message)
    assert len(explained.excluded) == 2


# any sequence of events


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["dispatch", "first", "finish", "retry", "cancel"]),
            st.integers(0, 9),
            st.sampled_from([*PHASES, FailurePoint.CONNECT]),
        ),
        max_size=60,
    )
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_reservation_is_released_once(build, steps):
    dispatcher = build(
        workers=3,
        retries=RetriesConfig(budget_ratio=1.0),
        max_requests_per_worker=4,
    )
    running = []
    for now, (step, at, point) in enumerate(steps):
        if step == "dispatch":
            ticket = dispatcher.dispatch(ask(now), now)
            if isinstance(ticket, Ticket):
                running.append(ticket)
        elif running:
            advance(dispatcher, running, at % len(running), step, point, now)
        assert max(load(dispatcher)) <= 4
        assert sum(load(dispatcher)) == len(running)
    for ticket in running:
        dispatcher.cancelled(ticket, 99.0)
        dispatcher.cancelled(ticket, 99.0)
    assert load(dispatcher) == [0, 0, 0]
    counts = dispatcher.statistics()
    ended = counts["finished"] + counts["cancelled"] + counts["failed"]
    assert counts["dispatched"] == ended


def advance(dispatcher, running, at, step, point, now):
    """Take one step of a request's life, as the gateway does."""
    ticket = running[at]
    if step == "first":
        dispatcher.first_token(ticket, now)
    elif step == "finish":
        dispatcher.finished(running.pop(at), Usage(), now)
    elif step == "cancel":
        dispatcher.cancelled(running.pop(at), now)
    elif step == "retry":
        again = dispatcher.retry(ticket, point, now, "why")
        if isinstance(again, Ticket):
            assert again.candidate.endpoint.id not in again.tried
            running[at] = again
        else:
            del running[at]
