"""Server errors that the request may have caused, and reported cached tokens that are unrelated to the prompt."""

import pytest

from policies.view import Residency
from router.placement.fleet.fleet import WorkerState
from router.placement.request import FailurePoint, Usage
from router.residency.view import Match


@pytest.fixture
def rig(make_rig):
    return make_rig(workers=3, policy="least_requests")


@pytest.fixture
def fleet(rig):
    return rig.fleet


@pytest.fixture
def core(rig):
    return rig.core


def states(fleet):
    return {endpoint.id: endpoint.state for endpoint in fleet.endpoints}


def test_a_request_that_always_fails_ejects_nobody(fleet, core, rig):
    for number in range(20):
        now_s = float(number)
        first = core.dispatcher.dispatch(rig.ask(), now_s)
        second = core.dispatcher.retry(first, FailurePoint.ANSWERED, now_s, "HTTP 500")
        assert second.candidate.endpoint is not first.candidate.endpoint
        core.dispatcher.retry(second, FailurePoint.ANSWERED, now_s, "HTTP 500")
    assert set(states(fleet).values()) == {WorkerState.READY}


def test_a_worker_whose_errors_others_do_not_share_is_ejected(fleet, core, rig):
    for number in range(30):
        now_s = number * 0.1
        ticket = core.dispatcher.dispatch(rig.ask(), now_s)
        if ticket.candidate.endpoint.id == "h:1":
            ticket = core.dispatcher.retry(ticket, FailurePoint.ANSWERED, now_s, "HTTP 500")
        core.tickets.first_token(ticket, now_s)
        core.tickets.finished(ticket, Usage(), now_s)
    assert states(fleet) == {"h:1": WorkerState.UNHEALTHY, "h:2": WorkerState.READY, "h:3": WorkerState.READY}


def test_a_worker_that_answered_with_an_error_is_passed_over_for_a_moment(core, rig):
    first = core.dispatcher.dispatch(rig.ask(), 0.0)
    core.tickets.failed(first, FailurePoint.ANSWERED, 0.0, "HTTP 500")
    taken = {core.dispatcher.dispatch(rig.ask(), 0.1).candidate.id for _ in range(6)}
    assert first.candidate.id not in taken


def test_a_prompt_that_skips_the_cache_is_reserved_whole_and_predicted_uncached(core, shadow_residency, rig):
    warm = core.dispatcher.dispatch(rig.ask(), 0.0)
    core.tickets.finished(warm, Usage(100, 1, 0), 0.0)
    ticket = core.dispatcher.dispatch(rig.ask(reads_cache=False), 1.0)
    assert ticket.predicted_cached_tokens == 0
    assert core.statistics()["workers"][ticket.candidate.id]["queued_tokens"] == 100
    core.tickets.finished(ticket, Usage(100, 1, 0), 1.0)
    counted = core.statistics()["workers"].values()
    assert sum(worker["predicted_cached"]["over"] for worker in counted) == 0


def test_nothing_is_predicted_to_be_found_where_nothing_is_cached(fleet, core, shadow_residency, rig):
    off = Match(0, 0, Residency.OFF)
    shadow_residency.match = lambda prompt, slots: dict.fromkeys(slots, off)
    assert core.dispatcher.dispatch(rig.ask(), 0.0).predicted_cached_tokens is None  # residency is off while in doubt
    for candidate in fleet.candidates:
        candidate.caches = False
    assert core.dispatcher.dispatch(rig.ask(), 0.0).predicted_cached_tokens == 0


def test_several_answers_report_nothing_of_the_prompt(core, rig):
    ticket = core.dispatcher.dispatch(rig.ask(answers=2), 0.0)
    core.tickets.finished(ticket, Usage(100, 2, 96), 0.0)
    counted = core.statistics()["workers"].values()
    assert sum(worker["predicted_cached"]["under"] for worker in counted) == 0
