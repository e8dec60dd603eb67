"""The share of requests that a worker with an empty cache gets, in virtual time."""

import random

import pytest

from backends.worker import Endpoint
from policies.registry import BUILT_IN, build_policy
from policies.spec import PolicySpec
from router.config.model import HealthConfig
from router.placement.dispatcher import Dispatcher
from router.placement.fleet import Fleet, WorkerState
from router.placement.lifecycle_events import Request, Usage
from router.placement.selection import exclusions, select

WINDOW_S = 20.0


@pytest.fixture
def fleet(shadow_residency, facts):
    fleet = Fleet(HealthConfig(slow_start_s=WINDOW_S), shadow_residency)
    for port in (1, 2, 3):
        fleet.add(Endpoint("http", "h", port), 0.0)
        fleet.probe_succeeded(f"h:{port}", facts(), 0.0)
    return fleet


def ask(number):
    return Request(f"chatcmpl-{number:08x}", "/v1/completions", "m", None, 100, 0.0)


def share(fleet, worker, now_s, requests=2_000):
    offered = [select(fleet, ask(number), (), now_s).candidates for number in range(requests)]
    return sum(worker in [candidate.id for candidate in candidates] for candidates in offered) / requests


def join(fleet, facts, port, now_s):
    fleet.add(Endpoint("http", "h", port), now_s)
    fleet.probe_succeeded(f"h:{port}", facts(), now_s)


def test_a_fleet_that_starts_together_is_not_held_back(fleet):
    assert [share(fleet, f"h:{port}", 0.0, 50) for port in (1, 2, 3)] == [1.0, 1.0, 1.0]


def test_the_share_of_a_worker_that_joins_grows_to_all(fleet, facts):
    join(fleet, facts, 4, 100.0)
    shares = [share(fleet, "h:4", 100.0 + second) for second in (0.0, 1.0, 5.0, 10.0, 15.0, 20.0)]
    assert shares == [pytest.approx(part, abs=0.04) for part in (0.1, 0.1, 0.25, 0.5, 0.75, 1.0)]
    assert shares[-1] == 1.0
    assert share(fleet, "h:1", 101.0, 50) == 1.0


def test_asking_twice_gives_the_same_answer_and_says_why_not(fleet, facts):
    join(fleet, facts, 4, 100.0)
    for number in range(50):
        once, again = (select(fleet, ask(number), (), 101.0) for _ in range(2))
        assert once == again
        why = exclusions(fleet, ask(number), once, 101.0)
        assert ("h:4" in why) is ("h:4" not in [candidate.id for candidate in once.candidates])
        assert "slow start" in why.get("h:4", "slow start")


def test_where_only_cold_workers_are_left_they_take_it_all(fleet, facts):
    join(fleet, facts, 4, 100.0)
    for port in (1, 2, 3):
        fleet.drain(f"h:{port}")
    assert share(fleet, "h:4", 100.0, 50) == 1.0


def test_a_worker_that_came_back_starts_when_its_trial_was_sent(fleet, facts):
    health = fleet.get("h:1").health
    for _ in range(3):
        fleet.probe_failed("h:1", "down", 50.0)
    fleet.probe_succeeded("h:1", facts(), 60.0)
    assert fleet.get("h:1").state is WorkerState.HALF_OPEN
    trial = select(fleet, ask(1), (), 90.0)
    assert trial.trial is fleet.get("h:1")  # at once: shares do not apply to the trial
    fleet.trial_started(trial.trial, 90.0)
    fleet.traffic_succeeded(trial.trial, trial=True, complete=True)
    assert health.warm_at_s == 90.0 + WINDOW_S
    assert share(fleet, "h:1", 92.0) == pytest.approx(0.1, abs=0.03)
    assert share(fleet, "h:1", 110.0) == 1.0


def test_who_woke_up_or_was_restarted_is_cold(fleet, facts):
    fleet.probe_succeeded("h:2", facts(sleeping=True), 50.0)
    fleet.probe_succeeded("h:2", facts(), 60.0)
    assert share(fleet, "h:2", 60.0) < 0.2
    fleet.restarted("h:3", 70.0)
    assert share(fleet, "h:3", 71.0) < 0.2
    fleet.drain("h:1")
    fleet.undrain("h:1")
    assert share(fleet, "h:1", 71.0, 50) == 1.0  # drained and back: its cache is unchanged


def test_without_slow_start_nobody_is_held_back(shadow_residency, facts):
    fleet = Fleet(HealthConfig(), shadow_residency)
    for port in (1, 2):
        join(fleet, facts, port, 100.0 * port)
    assert share(fleet, "h:2", 200.0, 50) == 1.0


@pytest.mark.parametrize("policy", BUILT_IN)
def test_no_policy_herds_onto_a_worker_that_joins(fleet, facts, shadow_residency, policy):
    dispatcher = Dispatcher(
        fleet, shadow_residency, build_policy(PolicySpec(policy), random.Random(0)), spec=PolicySpec(policy)
    )
    running = []
    taken = 0
    for number in range(600):
        now_s = 100.0 + number / 100
        if number == 200:
            join(fleet, facts, 4, now_s)
        ticket = dispatcher.dispatch(ask(number), now_s)
        dispatcher.first_token(ticket, now_s)
        running.append(ticket)
        taken += ticket.candidate.id == "h:4"
        if len(running) > 60:
            dispatcher.finished(running.pop(0), Usage(), now_s)
    assert taken <= 400 * 0.25  # of the requests in its first four seconds
