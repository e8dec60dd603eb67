import pytest


def pair_of(policy, request, view):
    """The prefix's two workers: those that all the others come after, whatever these have to do."""
    return set(policy.decide(request, view).ranked[:2])


def with_fields(view, fleet, **fields):
    return fleet(**{worker.id: fields.get(worker.id, {}) for worker in view.workers})


@pytest.fixture
def eight(fleet):
    return fleet(**{name: {} for name in "abcdefgh"})


@pytest.fixture
def request_of(request_view):
    return lambda *blocks: request_view(tokens=16 * len(blocks), blocks=blocks)


def test_a_prefix_has_two_workers_and_prefixes_spread(build, eight, request_of):
    policy = build("dualmap")
    shared = tuple(range(100, 108))  # 128 tokens
    assert pair_of(policy, request_of(*shared, 1, 2), eight) == pair_of(policy, request_of(*shared, 3), eight)
    pairs = [pair_of(policy, request_of(*range(9 * first, 9 * first + 9)), eight) for first in range(200)]
    assert all(len(pair) == 2 for pair in pairs)
    assert set.union(*pairs) == set("abcdefgh")
    assert len(set(map(frozenset, pairs))) > 20  # of 28


def test_the_one_with_more_cached_unless_it_is_over_half_the_slo(build, fleet, eight, request_of):
    policy = build("dualmap")
    request = request_of(*range(8))
    first, second = policy.decide(request, eight).ranked[:2]
    warm = {"cached_tokens": 64, "queue_wait_s": 2.0, "prefill_s": 0.5, "learned": True}
    cold = {"queue_wait_s": 0.1, "prefill_s": 1.0, "learned": True}
    for hot, other in [(first, second), (second, first)]:
        decision = policy.decide(request, with_fields(eight, fleet, **{hot: warm, other: cold}))
        assert decision.ranked[:2] == (hot, other)
        over = {**warm, "queue_wait_s": 2.01}
        decision = policy.decide(request, with_fields(eight, fleet, **{hot: over, other: cold}))
        assert decision.ranked[:2] == (other, hot)
        assert f"{hot} is over half the SLO" in decision.reason
        slow = {**cold, "queue_wait_s": 9.0}
        assert policy.decide(request, with_fields(eight, fleet, **{hot: over, other: slow})).ranked[0] == hot


def test_nothing_learned_has_no_seconds(build, fleet, eight, request_of):
    policy = build("dualmap")
    request = request_of(*range(8))
    first, second = policy.decide(request, eight).ranked[:2]
    view = with_fields(eight, fleet, **{first: {"cached_tokens": 64, "queue_wait_s": 9_000.0}, second: {}})
    assert policy.decide(request, view).ranked[0] == first


def test_equal_hits_go_by_estimate_and_the_rest_follows_by_estimate(build, fleet, eight, request_of):
    policy = build("dualmap")
    request = request_of(*range(8))
    first, second = policy.decide(request, eight).ranked[:2]
    loads = {worker.id: {"queue_wait_s": float(place)} for place, worker in enumerate(eight.workers)}
    view = with_fields(eight, fleet, **{**loads, first: {"queue_wait_s": 7.0}, second: {"queue_wait_s": 6.0}})
    ranked = policy.decide(request, view).ranked
    assert ranked[:2] == (second, first)
    assert list(ranked[2:]) == [worker.id for worker in eight.workers if worker.id not in (first, second)]


def test_a_hot_prefix_takes_longer_keys_just_above_its_share(build, fleet, eight, request_of, reserved):
    policy = build("dualmap", window_requests=8)
    system = tuple(range(8))
    requests = [request_of(*system, *range(100 * n, 100 * n + 8)) for n in range(1, 9)]
    before = pair_of(policy, requests[0], eight)
    for request in requests[:2]:  # two of eight are 2 / N: not more
        reserved(policy, "a", request)
    for n in range(6):
        reserved(policy, "a", request_of(900 + n))
    assert pair_of(policy, requests[0], eight) == before
    reserved(policy, "a", requests[2])  # the window forgets one of them: still two
    assert pair_of(policy, requests[0], eight) == before
    reserved(policy, "a", requests[3])
    reserved(policy, "a", requests[4])
    pairs = {frozenset(pair_of(policy, request, eight)) for request in requests}
    assert len(pairs) > 1


def test_its_window_is_bounded(build, request_of, reserved):
    policy = build("dualmap", window_requests=10)
    for number in range(1_000):
        reserved(policy, "a", request_of(*range(number, number + 40)))
    assert len(policy._window) == 10
    assert len(policy._arrivals) <= 10 * 8


def test_without_a_block_or_a_choice(build, fleet, request_view):
    policy = build("dualmap")
    decision = policy.decide(request_view(), fleet(a={"queue_wait_s": 1.0}, b={"queue_wait_s": 0.5}))
    assert decision.ranked == ("b", "a")
    assert "no full block" in decision.reason
    assert policy.decide(request_view(blocks=(1,)), fleet(a={})).ranked == ("a",)
