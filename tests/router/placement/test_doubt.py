"""Server errors that the request may have caused, and reported cached tokens that are unrelated to the prompt."""

import random

import pytest

from backends.worker import Endpoint
from policies.registry import build_policy
from policies.spec import PolicySpec
from policies.view import Residency
from router.config.model import HealthConfig
from router.placement.dispatcher import Dispatcher
from router.placement.fleet.fleet import Fleet, WorkerState
from router.placement.request import FailurePoint, Request, Usage
from router.residency.view import Match


@pytest.fixture
def fleet(shadow_residency, facts):
    fleet = Fleet(HealthConfig(), shadow_residency)
    for port in (1, 2, 3):
        fleet.add(Endpoint("http", "h", port), 0.0)
        fleet.probe_succeeded(f"h:{port}", facts(), 0.0)
    return fleet


@pytest.fixture
def dispatcher(fleet, shadow_residency):
    policy = build_policy(PolicySpec("least_requests"), random.Random(0))
    return Dispatcher(fleet, shadow_residency, policy, spec=PolicySpec("least_requests"))


def ask(prompt, **fields):
    return Request("r", "/v1/completions", "m", prompt(range(100)), 100, 0.0, **fields)


def states(fleet):
    return {endpoint.id: endpoint.state for endpoint in fleet.endpoints}


def test_a_request_that_always_fails_ejects_nobody(fleet, dispatcher, prompt):
    for number in range(20):
        now_s = float(number)
        first = dispatcher.dispatch(ask(prompt), now_s)
        second = dispatcher.retry(first, FailurePoint.ANSWERED, now_s, "HTTP 500")
        assert second.candidate.endpoint is not first.candidate.endpoint
        dispatcher.retry(second, FailurePoint.ANSWERED, now_s, "HTTP 500")
    assert set(states(fleet).values()) == {WorkerState.READY}


def test_a_worker_whose_errors_others_do_not_share_is_ejected(fleet, dispatcher, prompt):
    for number in range(30):
        now_s = number * 0.1
        ticket = dispatcher.dispatch(ask(prompt), now_s)
        if ticket.candidate.endpoint.id == "h:1":
            ticket = dispatcher.retry(ticket, FailurePoint.ANSWERED, now_s, "HTTP 500")
        dispatcher.first_token(ticket, now_s)
        dispatcher.finished(ticket, Usage(), now_s)
    assert states(fleet) == {"h:1": WorkerState.UNHEALTHY, "h:2": WorkerState.READY, "h:3": WorkerState.READY}


def test_a_worker_that_answered_with_an_error_is_passed_over_for_a_moment(dispatcher, prompt):
    first = dispatcher.dispatch(ask(prompt), 0.0)
    dispatcher.failed(first, FailurePoint.ANSWERED, 0.0, "HTTP 500")
    taken = {dispatcher.dispatch(ask(prompt), 0.1).candidate.id for _ in range(6)}
    assert first.candidate.id not in taken


def test_a_prompt_that_skips_the_cache_is_reserved_whole_and_predicted_uncached(dispatcher, shadow_residency, prompt):
    warm = dispatcher.dispatch(ask(prompt), 0.0)
    dispatcher.finished(warm, Usage(100, 1, 0), 0.0)
    ticket = dispatcher.dispatch(ask(prompt, reads_cache=False), 1.0)
    assert ticket.predicted_cached_tokens == 0
    assert dispatcher.statistics()["workers"][ticket.candidate.id]["queued_tokens"] == 100
    dispatcher.finished(ticket, Usage(100, 1, 0), 1.0)
    counted = dispatcher.statistics()["workers"].values()
    assert sum(worker["predicted_cached"]["over"] for worker in counted) == 0


def test_nothing_is_predicted_to_be_found_where_nothing_is_cached(fleet, dispatcher, shadow_residency, prompt):
    off = Match(0, 0, Residency.OFF)
    shadow_residency.match = lambda prompt, slots: dict.fromkeys(slots, off)
    assert dispatcher.dispatch(ask(prompt), 0.0).predicted_cached_tokens is None  # residency is off while in doubt
    for candidate in fleet.candidates:
        candidate.caches = False
    assert dispatcher.dispatch(ask(prompt), 0.0).predicted_cached_tokens == 0


def test_several_answers_report_nothing_of_the_prompt(dispatcher, prompt):
    ticket = dispatcher.dispatch(ask(prompt, answers=2), 0.0)
    dispatcher.finished(ticket, Usage(100, 2, 96), 0.0)
    counted = dispatcher.statistics()["workers"].values()
    assert sum(worker["predicted_cached"]["under"] for worker in counted) == 0
