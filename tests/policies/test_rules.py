import random
from collections import Counter

from policies.registry import build_policy
from policies.spec import PolicySpec


def build(name, **params):
    return build_policy(PolicySpec(name, params), random.Random(7))


def test_round_robin_follows_reservations_alone(fleet, request_view, reserved):
    policy = build("round_robin")
    view = fleet(a={}, b={}, c={})
    chosen = []
    for _ in range(6):
        chosen.append(policy.decide(request_view(), view).ranked[0])
        reserved(policy, chosen[-1], request_view())
    assert chosen == ["a", "b", "c"] * 2
    grown = fleet(a={}, b={}, c={}, d={})
    assert policy.decide(request_view(), grown).ranked[0] == "d"


def test_random_is_even(fleet, request_view):
    policy = build("random")
    view = fleet(a={}, b={}, c={})
    counts = Counter(policy.decide(request_view(), view).ranked[0] for _ in range(900))
    assert all(240 < count < 360 for count in counts.values())


def test_least_requests_and_its_ties(fleet, request_view, reserved):
    policy = build("least_requests")
    view = fleet(a={"running_requests": 2}, b={"running_requests": 1}, c={"running_requests": 1})
    assert policy.decide(request_view(), view).ranked == ("b", "c", "a")
    reserved(policy, "b", request_view())
    assert policy.decide(request_view(), view).ranked == ("c", "b", "a")


def test_least_tokens_counts_queued_tokens_then_requests(fleet, request_view):
    view = fleet(
        a={"queued_tokens": 10},
        b={"queued_tokens": 5, "running_requests": 2},
        c={"queued_tokens": 5, "running_requests": 1, "uncached_tokens": 9_000},
    )
    decision = build("least_tokens").decide(request_view(), view)
    assert decision.ranked == ("c", "b", "a")
    assert decision.costs == (5.0, 5.0, 10.0)


def test_power_of_two_takes_the_less_loaded_of_the_two_drawn(fleet, request_view):
    policy = build("power_of_two")
    view = fleet(a={"running_requests": 5}, b={"running_requests": 5}, c={"running_requests": 0})
    counts = Counter(policy.decide(request_view(), view).ranked[0] for _ in range(900))
    assert 540 < counts["c"] < 660  # it is in two pairs of three, and wins each


def test_least_tokens_breaks_ties_by_last_use(fleet, request_view, reserved):
    policy = build("least_tokens")
    reserved(policy, "a", request_view())
    assert policy.decide(request_view(), fleet(a={}, b={})).ranked[0] == "b"


def test_lpwl_is_queued_plus_own_tokens_then_requests_then_turn(fleet, request_view, reserved):
    policy = build("lpwl")
    view = fleet(
        a={"queued_tokens": 50, "uncached_tokens": 60},
        b={"queued_tokens": 100, "uncached_tokens": 10, "running_requests": 1},
        c={"queued_tokens": 0, "uncached_tokens": 100},
        d={"queued_tokens": 0, "uncached_tokens": 100},
    )
    decision = policy.decide(request_view(), view)
    assert decision.ranked == ("c", "d", "a", "b")
    assert decision.terms["b"] == {"queued_tokens": 100, "uncached_tokens": 10}
    reserved(policy, "c", request_view())
    assert policy.decide(request_view(), view).ranked[0] == "d"


def test_cache_aware_longest_match_above_the_threshold(fleet, request_view, reserved):
    policy = build("cache_aware")
    view = fleet(a={}, b={"running_requests": 60})
    known = request_view(tokens=160, blocks=(1, 2, 3, 4))
    reserved(policy, "b", known)
    assert policy.decide(known, view).ranked[0] == "b"
    barely = request_view(tokens=160, blocks=(1, 2, 3, 9))  # 48 of 160 tokens match: not more than 0.3
    decision = policy.decide(barely, view)
    assert decision.ranked[0] == "a"
    assert decision.reason == "fewest requests (best match 30%)"
    assert decision.terms["b"] == {"match": 48, "tree_blocks": 4, "requests": 60}
    assert policy.decide(request_view(tokens=159, blocks=(1, 2, 3, 9)), view).ranked[0] == "b"


def test_cache_aware_ties_go_to_the_worker_that_joined_first(fleet, request_view, reserved):
    policy = build("cache_aware")
    view = fleet(a={"running_requests": 1}, b={}, c={})
    assert policy.decide(request_view(), view).ranked == ("b", "c", "a")
    known = request_view(tokens=16, blocks=(1,))
    for worker in "cb":
        reserved(policy, worker, known)
    assert policy.decide(known, view).ranked == ("b", "c", "a")


def test_cache_aware_of_earlier_releases_sends_a_miss_to_the_smallest_tree(fleet, request_view, reserved):
    policy = build("cache_aware", on_miss="smallest_tree", cache_threshold=0.5)
    reserved(policy, "a", request_view(tokens=64, blocks=(1, 2, 3, 4)))
    reserved(policy, "b", request_view(tokens=32, blocks=(5, 6)))
    view = fleet(a={}, b={"running_requests": 9})
    decision = policy.decide(request_view(tokens=16, blocks=(7,)), view)
    assert decision.ranked[0] == "b"
    assert decision.reason == "smallest tree (best match 0%)"


def test_cache_aware_imbalance_needs_both_thresholds(fleet, request_view, reserved):
    policy = build("cache_aware")
    known = request_view(tokens=64, blocks=(1, 2, 3, 4))
    reserved(policy, "b", known)
    assert policy.decide(known, fleet(a={}, b={"running_requests": 64})).ranked[0] == "b"
    assert policy.decide(known, fleet(a={}, b={"running_requests": 65})).ranked[0] == "a"
    close = fleet(a={"running_requests": 200}, b={"running_requests": 290})
    assert policy.decide(known, close).ranked[0] == "b"


def test_cache_aware_tree_is_bounded_and_loses_tails_first(fleet, request_view, reserved):
    policy = build("cache_aware", max_tree_blocks=6)
    view = fleet(a={}, b={})
    reserved(policy, "a", request_view(tokens=64, blocks=(1, 2, 3, 4)))
    reserved(policy, "a", request_view(tokens=64, blocks=(5, 6, 7, 8)))
    head = request_view(tokens=32, blocks=(1, 2))
    assert policy.decide(head, view).ranked[0] == "a"
    whole = request_view(tokens=64, blocks=(1, 2, 3, 4))
    assert "(50% of the prompt)" in policy.decide(whole, view).reason


def test_cache_aware_forgets_workers_that_left(fleet, request_view, reserved):
    policy = build("cache_aware")
    known = request_view(tokens=16, blocks=(1,))
    for number in range(2_000):
        reserved(policy, f"gone{number}", known)
    reserved(policy, "a", known)
    assert policy.decide(known, fleet(b={}, a={})).ranked[0] == "a"
    assert len(policy._trees) <= 1_024
