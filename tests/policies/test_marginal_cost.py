import random

import pytest

from policies.registry import build_policy
from policies.spec import PolicySpec
from policies.view import FleetView, LifecycleEvent, LifecycleEventKind


@pytest.fixture
def fleet(fleet, form, running_requests):
    def make(**workers):
        views = fleet(**workers).workers
        return form(FleetView(0.0, views, running_share=running_requests.share))

    return make


@pytest.fixture
def policy():
    return build_policy(PolicySpec(), random.Random(0))


def test_cost_is_queue_wait_plus_prefill_priced_by_utilisation(policy, fleet, request_view):
    view = fleet(
        a={"queue_wait_s": 0.1, "prefill_s": 0.2, "utilisation": 0.5, "learned": True},
        b={"queue_wait_s": 0.0, "prefill_s": 0.4, "utilisation": 0.0, "learned": True},
    )
    decision = policy.decide(request_view(), view)
    assert decision.ranked == ("b", "a")
    assert tuple(decision.costs) == pytest.approx((0.4, 0.5))
    assert decision.unit == "s"
    assert decision.terms["a"] == pytest.approx(
        {
            "queue_wait_s": 0.1,
            "kv_wait_s": 0.0,
            "prefill_s": 0.2,
            "prefill_externality_s": 0.2,
            "decode_externality_s": 0.0,
            "hot_prefix_s": 0.0,
            "prefill_lane_s": 0.0,
        }
    )


@pytest.mark.parametrize(("kv_wait_s", "chosen"), [(0.2, "a"), (0.4, "b")])
def test_a_cached_prefix_loses_to_a_longer_kv_wait(policy, fleet, request_view, kv_wait_s, chosen):
    view = fleet(
        a={"learned": True, "prefill_s": 0.1, "kv_wait_s": kv_wait_s},
        b={"learned": True, "prefill_s": 0.4},
    )
    decision = policy.decide(request_view(), view)
    assert decision.ranked[0] == chosen
    assert decision.terms["a"]["kv_wait_s"] == kv_wait_s


@pytest.mark.parametrize(("free_tokens", "chosen", "waits"), [(300, "b", False), (299, "a", True)])
def test_of_equals_one_where_the_prompt_fits_wins(policy, fleet, request_view, free_tokens, chosen, waits):
    usual = {"learned": True, "prefill_s": 0.3, "error_s": 0.1, "uncached_tokens": 300, "kv_capacity_tokens": 1_000}
    view = fleet(
        a={**usual, "prefill_s": 0.29, "kv_tokens": 500, "idle_tokens": 201, "running_requests": 1},
        b={**usual, "kv_tokens": 1_000 - free_tokens, "running_requests": 2},
    )
    policy.observe(
        LifecycleEvent(LifecycleEventKind.RESERVED, request_view(), view.ids[0], 0.0, placed=view.worker(0), fleet=view)
    )
    decision = policy.decide(request_view(), view)
    assert (decision.ranked[0], decision.hold_s > 0.0, decision.until_prefills_done) == (chosen, waits, not waits)
    assert decision.reason.endswith("; holds for space in its KV cache") is waits


@pytest.mark.parametrize(("weight", "chosen"), [(0.0, "a"), (0.1, "b"), (1.0, "b")])
def test_decode_externality_is_priced_at_its_weight(fleet, request_view, weight, chosen):
    policy = build_policy(PolicySpec(params={"stream_weight": weight}), random.Random(0))
    view = fleet(
        a={"learned": True, "prefill_s": 0.1, "decode_externality_s": 3.0},
        b={"learned": True, "prefill_s": 0.2, "decode_externality_s": 1.0},
    )
    decision = policy.decide(request_view(), view)
    assert decision.ranked[0] == chosen
    assert decision.terms["a"]["decode_externality_s"] == pytest.approx(3.0 * weight)


def test_before_anything_is_learned_it_ranks_as_lpwl(policy, fleet, request_view):
    view = fleet(a={"queue_wait_s": 50.0, "prefill_s": 60.0}, b={"queue_wait_s": 0.0, "prefill_s": 100.0})
    decision = policy.decide(request_view(), view)
    assert decision.ranked == ("b", "a")
    assert decision.unit == "s"


def test_ties_go_to_the_fewest_requests_then_to_the_least_recently_used(policy, fleet, request_view, reserved):
    view = fleet(a={"running_requests": 1}, b={}, c={})
    assert policy.decide(request_view(), view).ranked[0] == "b"
    reserved(policy, "b", request_view())
    decision = policy.decide(request_view(), view)
    assert decision.ranked[0] == "c"
    assert "3" in decision.reason


def test_the_whole_ranking_is_by_cost_then_requests_then_last_use(policy, fleet, request_view, reserved):
    dear = {"queue_wait_s": 9.0}
    view = fleet(a={"running_requests": 1}, b={}, c=dear, d={}, e={}, f={**dear, "queue_wait_s": 8.0})
    reserved(policy, "b", request_view())
    decision = policy.decide(request_view(), view)
    last_used = ("e", "b") if view.is_small else ("b", "e")
    assert decision.ranked == ("d", *last_used, "a", "f", "c"), "arrays leave out the last use after the choice"
    assert decision.costs == (0.0, 0.0, 0.0, 0.0, 8.0, 9.0)


def test_costs_within_their_errors_are_equal(policy, fleet, request_view):
    near = {"learned": True, "prefill_s": 0.010, "error_s": 0.001}
    view = fleet(a={**near, "running_requests": 3}, b={**near, "prefill_s": 0.0115}, c={**near, "prefill_s": 0.013})
    decision = policy.decide(request_view(), view)
    assert decision.ranked == ("b", "a", "c")
    among = "among 2 whose costs differ by no more than the error of the estimates, the least busy"
    assert decision.reason == among
    roomy, full = {"kv_capacity_tokens": 100_000}, {"kv_capacity_tokens": 1_000, "kv_tokens": 1_000}
    view = fleet(a={**near, **roomy, "running_requests": 3}, b={**near, **full})
    decision = policy.decide(request_view(), view)
    assert (decision.ranked[0], decision.reason) == ("a", f"{among} with space in its KV cache")
    view = fleet(a=near, c={**near, "prefill_s": 0.2})
    assert policy.decide(request_view(), view).reason == "least added delay"


def test_noise_never_outweighs_counted_tokens(policy, fleet, request_view):
    near = {"learned": True, "error_s": 0.01}
    view = fleet(
        a={**near, "prefill_s": 0.010, "uncached_tokens": 50, "running_requests": 3},
        b={**near, "prefill_s": 0.011, "uncached_tokens": 66},
    )
    assert policy.decide(request_view(), view).ranked[0] == "a"


HOT = (1, 2, 3)
"""Blocks of a prefix: 48 tokens, and each question adds blocks of its own."""
HOLDER = {
    "learned": True,
    "prefill_s": 0.001,
    "uncached_tokens": 16,
    "cached_tokens": 48,
    "decode_externality_s": 0.05,
}
OTHER = {"learned": True, "prefill_s": 0.040, "uncached_tokens": 64}


@pytest.fixture
def running(running_requests):
    """Let requests with these blocks run on a worker."""

    def run(worker, count, blocks=HOT):
        for number in range(count):
            running_requests.add(worker, (*blocks, 100 + number))

    return run


@pytest.fixture
def hot(request_view):
    return request_view(tokens=64, blocks=(*HOT, 9), decode_s=0.2)


def test_a_hot_prefix_is_priced_once_it_is_significant(policy, fleet, hot, running):
    running("a", 6)
    usual = fleet(a={**HOLDER, "running_requests": 5}, b=OTHER, c=OTHER, d=OTHER)
    assert policy.decide(hot, usual).ranked[0] == "a"
    crowded = fleet(a={**HOLDER, "running_requests": 6}, b=OTHER, c=OTHER, d=OTHER)
    decision = policy.decide(hot, crowded)
    assert decision.ranked[0] == "b"
    assert decision.terms["a"]["hot_prefix_s"] == pytest.approx(6 * 0.05)
    busy = fleet(a={**HOLDER, "running_requests": 20}, b={**OTHER, "running_requests": 8})
    assert policy.decide(hot, busy).terms["a"]["hot_prefix_s"] == pytest.approx((20 - 8) * 0.05)
    dear = {**OTHER, "prefill_s": 4.0}
    assert policy.decide(hot, fleet(a={**HOLDER, "running_requests": 32}, b=dear)).ranked[0] == "a"


def test_a_hot_prefix_is_avoided_while_its_price_is_unknown(policy, fleet, hot, running):
    running("a", 5)
    unknown = {"learned": False, "running_requests": 5, "decode_externality_s": 0.0}
    view = fleet(a={**HOLDER, **unknown, "prefill_s": 1.0}, b={**OTHER, "learned": False, "prefill_s": 4.0})
    decision = policy.decide(hot, view)
    assert decision.ranked[0] == "b"
    assert decision.terms["a"]["hot_prefix_s"] == 4.0


def test_a_worker_busy_with_other_prompts_has_no_hot_prefix(policy, fleet, hot, running):
    """Of 20 requests 5 share the prefix; up to 4 would be chance beside none on the other worker."""
    running("a", 15, blocks=(7, 8))
    view = fleet(a={**HOLDER, "running_requests": 20}, b=OTHER)
    assert policy.decide(hot, view).terms["a"]["hot_prefix_s"] == 0.0
    running("a", 5)
    assert policy.decide(hot, view).terms["a"]["hot_prefix_s"] == pytest.approx(20 * 0.05)
    assert policy.decide(hot, fleet(a={**HOLDER, "running_requests": 16}, b=OTHER)).terms["a"]["hot_prefix_s"] == 0.0


def test_a_prefix_on_both_workers_has_no_price_and_a_block_that_one_lacks_has(policy, fleet, request_view, running):
    """Both workers have the system prompt, one has the conversation: no other request would use a copy of that."""
    running("a", 12)
    turn = request_view(tokens=80, blocks=(*HOT, 50, 51), decode_s=0.2)
    holder = {**HOLDER, "cached_tokens": 64, "running_requests": 12}
    assert policy.decide(turn, fleet(a=holder, b={**OTHER, "cached_tokens": 48})).terms["a"]["hot_prefix_s"] == 0.0
    assert policy.decide(turn, fleet(a=holder, b={**OTHER, "cached_tokens": 32})).terms["a"]["hot_prefix_s"] > 0.0


def test_a_copied_policy_prices_the_same_hot_prefix(policy, fleet, hot, running):
    """Both hold the prefix and one has all requests: the other one wins, at no cost in reuse."""
    running("a", 12)
    view = fleet(a={**HOLDER, "running_requests": 12, "prefill_s": 0.0005}, b=HOLDER)
    assert policy.decide(hot, view).ranked[0] == "b"


def test_a_copy_counts_no_more_than_it_saves(policy, fleet, request_view, running):
    """All prompts begin with one block, and both workers have it: its 16 tokens of 1,616 must not outweigh a queue."""
    running("a", 12, blocks=(1, 7))
    request = request_view(tokens=1_616, blocks=(1, 8), decode_s=10.0)
    known = {"learned": True, "cached_tokens": 16, "uncached_tokens": 1_600, "prefill_s": 0.1}
    queue = fleet(a={**known, "running_requests": 12}, b={**known, "queue_wait_s": 0.01})
    decision = policy.decide(request, queue)
    assert decision.terms["a"]["hot_prefix_s"] == pytest.approx(0.001)
    assert decision.ranked[0] == "a"
    assert policy.decide(request, fleet(a={**known, "running_requests": 12}, b=known)).ranked[0] == "b"


def test_terms_stay_as_they_were_decided_on(policy, fleet, hot, running):
    running("a", 6)
    decision = policy.decide(hot, fleet(a={**HOLDER, "running_requests": 6}, b=OTHER))
    running("a", 40, blocks=(7, 8))
    assert decision.terms["a"]["hot_prefix_s"] == pytest.approx(6 * 0.05)


def test_a_prompt_without_identity_has_no_hot_prefix_price(policy, fleet, request_view, running):
    running("a", 12)
    request = request_view(tokens=64, block_tokens=0, decode_s=0.2)
    view = fleet(a={**HOLDER, "cached_tokens": 0, "running_requests": 12}, b=OTHER)
    assert policy.decide(request, view).terms["a"]["hot_prefix_s"] == 0.0
