import random

import pytest

from policies.registry import build_policy
from policies.spec import PolicySpec
from policies.view import Decision, FleetView, RequestView, Residency, WorkerId, WorkerView
from router.placement.policies.policy_runner import PolicyRunner
from router.placement.policies.shadow import PER_S, RouteShadows, ShadowBudget, finished, first_token

REQUEST = RequestView("r", "m", 100, 16, ())


def view(name, queue_wait_s=0.0, cached=0, running=0):
    return WorkerView(
        WorkerId(name), Residency.EXACT, cached, 100 - cached, 0, running, 0, 0, queue_wait_s, 1.0, 0.0, learned=True
    )


class Always:
    def __init__(self, worker):
        self.worker = worker

    def decide(self, request, fleet):
        return Decision((self.worker, *[one for one in fleet.ids if one != self.worker]), "always")


class Broken:
    def decide(self, request, fleet):
        raise ZeroDivisionError


def runner(policy, name):
    return PolicyRunner(policy, PolicySpec(name), called=name)


FLEET = FleetView(30.0, (view("a", 2.0, cached=50), view("b", 0.5)))
CHOSEN_A = Decision(("a", "b"), "chosen")


def shadows(*runners):
    return RouteShadows(runners)


def test_choices_are_compared_with_the_one_that_was_made():
    route = shadows(runner(Always("a"), "same"), runner(Always("b"), "other"))
    sample = route.decide(REQUEST, FLEET, CHOSEN_A)
    first_token(sample, 3.5)
    finished(sample, 48)
    found = route.compared(30.0, 600)
    assert (found["same"].decisions, found["same"].agreed) == (1, 1)
    other = found["other"]
    assert (other.decisions, other.agreed, other.failed) == (1, 0, 0)
    assert (other.predicted_ttft_s, other.shadow_ttft_s) == (3.0, 1.5)
    assert (other.predicted_cached_tokens, other.shadow_cached_tokens) == (50, 0)
    assert (other.ttfts, other.reported_ttft_s, other.predicted_for_reported_ttft_s) == (1, 3.5, 3.0)
    assert (other.hits, other.reported_cached_tokens) == (1, 48)


def test_a_window_leaves_out_older_minutes():
    route = shadows(runner(Always("b"), "other"))
    for minute in range(5):
        route.decide(REQUEST, FleetView(60.0 * minute + 1, FLEET.workers), CHOSEN_A)
    assert route.compared(250.0, 3_600)["other"].decisions == 5
    assert route.compared(250.0, 60)["other"].decisions == 2


def test_a_shadow_policy_that_fails_is_counted_and_harms_nothing():
    route = shadows(runner(Broken(), "broken"))
    route.decide(REQUEST, FLEET, CHOSEN_A)
    assert route.compared(30.0, 600)["broken"].failed == 1


def test_the_budget_bounds_the_decisions_of_a_second():
    budget = ShadowBudget()
    taken = sum(budget.take(1, 10.0 + number / 1_000) for number in range(1_000))
    assert taken == pytest.approx(2 * PER_S, abs=2)  # what was saved up, and a second's worth
    assert budget.skipped == 1_000 - taken


def test_a_shadow_does_not_move_the_random_source_of_the_policy_in_force():
    policy = build_policy(PolicySpec("random"), random.Random(7))
    alone = [policy.decide(REQUEST, FLEET).ranked[0] for _ in range(20)]
    policy = build_policy(PolicySpec("random"), random.Random(7))
    route = shadows(runner(build_policy(PolicySpec("random"), random.Random(8)), "shadow"))
    beside = []
    for _ in range(20):
        decision = policy.decide(REQUEST, FLEET)
        route.decide(REQUEST, FLEET, decision)
        beside.append(decision.ranked[0])
    assert alone == beside
