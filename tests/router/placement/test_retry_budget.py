"""Retries that a budget pays for, hedges, and limits per worker: the dispatcher in virtual time."""

import random
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.worker import Endpoint
from policies.registry import build_policy
from router.config.model import HealthConfig, HedgingConfig, RetriesConfig
from router.errors import ErrorKind
from router.placement.dispatcher import Dispatcher, Reject, Ticket
from router.placement.fleet import Fleet
from router.placement.lifecycle_events import FailurePhase, Request, Usage

PHASES = (FailurePhase.SENT, FailurePhase.REFUSED, FailurePhase.UNSERVED, FailurePhase.ANSWERED)


@pytest.fixture
def build(shadow_residency, facts):
    def make(workers=4, **options):
        fleet = Fleet(HealthConfig(failure_threshold=1_000), shadow_residency)
        for port in range(1, workers + 1):
            fleet.add(Endpoint("http", "h", port), 0.0)
            fleet.probe_succeeded(f"h:{port}", facts(), 0.0)
        refused = []
        observer = SimpleNamespace(
            decided=lambda ticket: None,
            failed=lambda *_: None,
            rejected=lambda *_: None,
            policy_failed=lambda *_: None,
            retry_refused=lambda: refused.append(1),
        )
        policy = build_policy("least_requests", {}, random.Random(0))
        dispatcher = Dispatcher(
            fleet, shadow_residency, policy, policy_name="least_requests", observer=observer, **options
        )
        dispatcher.refused, dispatcher.fleet = refused, fleet
        return dispatcher

    return make


def ask(number=0):
    return Request(f"r{number}", "/v1/completions", "m", None, 100, 0.0)


def load(dispatcher):
    return [lane["running_requests"] for lane in dispatcher.statistics()["workers"].values()]


# the retry budget


@pytest.mark.parametrize("phase", PHASES)
def test_without_budget_the_client_gets_the_error_it_would_get_alone(build, phase):
    poor = build(retries=RetriesConfig(budget_ratio=0.0, budget_floor_per_s=0.0))
    lonely = build(workers=1)
    answers = [each.retry(each.dispatch(ask(), 0.0), phase, 0.0, "why") for each in (poor, lonely)]
    assert all(isinstance(answer, Reject) for answer in answers)
    assert answers[0].error.kind is answers[1].error.kind
    assert str(answers[0].error) == str(answers[1].error)
    assert (len(poor.refused), len(lonely.refused)) == (1, 0)
    assert load(poor) == [0, 0, 0, 0]


def test_a_connection_that_could_not_be_made_is_free(build):
    poor = build(retries=RetriesConfig(budget_ratio=0.0, budget_floor_per_s=0.0))
    again = poor.retry(poor.dispatch(ask(), 0.0), FailurePhase.CONNECT, 0.0, "refused")
    assert isinstance(again, Ticket)
    assert poor.refused == []


def test_a_sick_fleet_is_not_stormed(build):
    dispatcher = build(retries=RetriesConfig(budget_ratio=0.2, budget_floor_per_s=0.0))
    attempts = 0
    for number in range(3_000):
        now_s = number / 50
        ticket = dispatcher.dispatch(ask(number), now_s)
        while isinstance(ticket, Ticket):
            attempts += 1
            ticket = dispatcher.retry(ticket, FailurePhase.ANSWERED, now_s, "500")
    assert attempts == pytest.approx(3_000 * 1.2, rel=0.05)
    assert load(dispatcher) == [0, 0, 0, 0]


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_as_many_attempts_as_configured(build, limit):
    dispatcher = build(retries=RetriesConfig(max_attempts=limit))
    ticket, attempts = dispatcher.dispatch(ask(), 0.0), 0
    while isinstance(ticket, Ticket):
        attempts += 1
        ticket = dispatcher.retry(ticket, FailurePhase.CONNECT, 0.0, "refused")
    assert attempts == limit


# hedges


def test_a_hedge_is_booked_beside_the_first_attempt_and_both_are_in_the_log(build):
    dispatcher = build(hedging=HedgingConfig(max_ratio=1.0))
    first = dispatcher.dispatch(ask(), 0.0)
    second = dispatcher.hedge(first, 1.0)
    assert second.candidate is not first.candidate
    assert sorted(load(dispatcher)) == [0, 0, 1, 1]
    dispatcher.lost(first, 2.0)
    dispatcher.finished(second, Usage(), 3.0)
    assert load(dispatcher) == [0, 0, 0, 0]
    log = [record.to_builtins() for record in dispatcher.decisions(5)]
    assert [(each["request_id"], each["hedge"], each["attempt"]) for each in log] == [("r0", True, 2), ("r0", False, 1)]
    assert [each["outcome"] for each in log] == ["finished", "cancelled: another worker answered first"]


def test_hedges_are_bounded_by_their_share_and_by_the_retry_budget(build):
    narrow = build(hedging=HedgingConfig(max_ratio=0.05), retries=RetriesConfig(budget_ratio=1.0))
    assert hedges(narrow) == pytest.approx(1_000 * 0.05, abs=2)
    poor = build(hedging=HedgingConfig(max_ratio=1.0), retries=RetriesConfig(budget_ratio=0.1, budget_floor_per_s=0))
    assert hedges(poor) == pytest.approx(1_000 * 0.1, abs=2)
    assert len(poor.refused) > 800


def hedges(dispatcher):
    placed = 0
    for number in range(1_000):
        first = dispatcher.dispatch(ask(number), number / 100)
        second = dispatcher.hedge(first, number / 100)
        if second is not None:
            placed += 1
            dispatcher.lost(second, number / 100)
        dispatcher.finished(first, Usage(), number / 100)
    assert load(dispatcher) == [0, 0, 0, 0]
    return placed


def test_no_hedge_without_another_ready_worker_or_for_what_is_over(build):
    alone = build(workers=1, hedging=HedgingConfig(max_ratio=1.0))
    assert alone.hedge(alone.dispatch(ask(), 0.0), 1.0) is None
    pair = build(workers=2, hedging=HedgingConfig(max_ratio=1.0))
    ticket = pair.dispatch(ask(), 0.0)
    pair.cancelled(ticket, 0.5)
    assert pair.hedge(ticket, 1.0) is None


def test_what_is_left_of_two_attempts_knows_what_the_other_met(build):
    dispatcher = build(hedging=HedgingConfig(max_ratio=1.0))
    first = dispatcher.dispatch(ask(), 0.0)
    second = dispatcher.hedge(first, 1.0)
    dispatcher.hedge_left(first, second, FailurePhase.REFUSED, 2.0, "HTTP 503", 7.0)
    assert (first.attempt, first.refusal_s, first.sent_failures) == (2, 7.0, 0)
    third = dispatcher.retry(first, FailurePhase.SENT, 3.0, "died")
    assert third.candidate.id not in (first.candidate.id, second.candidate.id)
    assert (third.attempt, third.sent_failures) == (3, 1)
    assert isinstance(dispatcher.retry(third, FailurePhase.CONNECT, 3.0, "refused"), Reject)
    assert load(dispatcher) == [0, 0, 0, 0]


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
    assert isinstance(dispatcher.retry(first, FailurePhase.SENT, 0.0, "died"), Reject)
    assert sorted(load(dispatcher)) == [0, 1]


# whatever happens


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["dispatch", "hedge", "first", "finish", "retry", "cancel", "lose", "left"]),
            st.integers(0, 9),
            st.sampled_from([*PHASES, FailurePhase.CONNECT]),
            st.booleans(),
        ),
        max_size=60,
    )
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_booking_is_given_back_once(build, steps):
    dispatcher = build(
        workers=3,
        hedging=HedgingConfig(max_ratio=1.0),
        retries=RetriesConfig(budget_ratio=1.0),
        max_requests_per_worker=4,
    )
    pairs = []  # [first, second or None] of each request that is under way
    for now, (step, at, phase, swapped) in enumerate(steps):
        pair = pairs[at % len(pairs)] if pairs else None
        if step == "dispatch":
            ticket = dispatcher.dispatch(ask(now), now)
            if isinstance(ticket, Ticket):
                pairs.append([ticket, None])
        elif pair is not None:
            advance(dispatcher, pairs, pair, step, phase, swapped, now)
        assert max(load(dispatcher)) <= 4
        running = sum(load(dispatcher))
        assert running == sum(1 + (second is not None) for _, second in pairs)
    for first, second in pairs:
        dispatcher.cancelled(first, 99.0)
        if second is not None:
            dispatcher.lost(second, 99.0)
            dispatcher.lost(second, 99.0)
    assert load(dispatcher) == [0, 0, 0]
    counts = dispatcher.statistics()
    ended = counts["finished"] + counts["cancelled"] + counts["failed"]
    assert counts["dispatched"] == ended


def advance(dispatcher, pairs, pair, step, phase, swapped, now):
    """One step of a request's life, as an exchange would take it."""
    first, second = pair
    if step == "hedge" and second is None:
        pair[1] = dispatcher.hedge(first, now)
    elif step in ("first", "finish") and second is None:
        dispatcher.first_token(first, now)
        if step == "finish":
            dispatcher.finished(first, Usage(), now)
            pairs.remove(pair)
    elif step == "lose" and second is not None:
        winner, loser = (second, first) if swapped else (first, second)
        dispatcher.lost(loser, now)
        pair[:] = [winner, None]
    elif step == "left" and second is not None:
        left, failed = (second, first) if swapped else (first, second)
        dispatcher.hedge_left(left, failed, phase, now, "why", None)
        assert failed.candidate.endpoint.id in left.tried
        pair[:] = [left, None]
    elif step == "retry" and second is None:
        again = dispatcher.retry(first, phase, now, "why")
        if isinstance(again, Ticket):
            assert again.candidate.endpoint.id not in again.tried
            pair[0] = again
        else:
            pairs.remove(pair)
    elif step == "cancel":
        dispatcher.cancelled(first, now)
        if second is not None:
            dispatcher.lost(second, now)
        pairs.remove(pair)
