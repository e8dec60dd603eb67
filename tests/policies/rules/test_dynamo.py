import pytest

from policies.view import RequestView


def test_default_is_prefill_blocks_less_overlap_plus_decode_blocks(build, fleet, request_view):
    view = fleet(
        a={"queued_tokens": 160, "cached_tokens": 80, "kv_tokens": 320},
        b={"queued_tokens": 0, "cached_tokens": 0, "kv_tokens": 640},
    )
    decision = build("dynamo_default").decide(request_view(tokens=160, blocks=range(10)), view)
    # of a: 160 + 160 - 80 and 320 + 160 tokens, in blocks of 16; of b: 160 and 640 + 160
    assert decision.costs == (45.0, 60.0)
    assert decision.terms["a"] == {"prefill_blocks": 15.0, "decode_blocks": 30.0, "requests": 0.0}


def test_default_credits_slower_tiers_and_never_goes_below_zero(build, fleet, request_view):
    tiers = {"GPU": 32, "CPU": 64, "STORE": 64}
    view = fleet(a={"cached_tokens": 32, "cached_tokens_by_tier": tiers}, b={"cached_tokens": 160})
    decision = build("dynamo_default").decide(request_view(tokens=160, blocks=range(10)), view)
    # 160 - 32 - 0.75 * 64 - 0.25 * 64 = 64 tokens
    assert decision.terms["a"]["prefill_blocks"] == pytest.approx(4.0)
    assert decision.terms["b"]["prefill_blocks"] == 0.0
    weighed = build("dynamo_default", prefill_load_scale=2.0, overlap_credit=0.5, request_weight=3.0)
    view = fleet(a={"cached_tokens": 32, "running_requests": 2})
    assert weighed.decide(request_view(tokens=160, blocks=range(10)), view).costs == (2 * 9.0 + 10.0 + 6.0,)


def test_default_adds_time_and_space_one_to_one(build, fleet, request_view):
    # a full hit on a worker with much in memory loses to a cold one with none
    view = fleet(a={"cached_tokens": 144, "kv_tokens": 161}, b={})
    assert build("dynamo_default").decide(request_view(tokens=160, blocks=range(10)), view).ranked[0] == "b"
    view = fleet(a={"cached_tokens": 144, "kv_tokens": 143}, b={})
    assert build("dynamo_default").decide(request_view(tokens=160, blocks=range(10)), view).ranked[0] == "a"


def test_default_ties_in_turn_also_without_identity(build, fleet, reserved):
    policy = build("dynamo_default")
    request = RequestView("r", "m", 100, 0, ())
    reserved(policy, "a", request)
    assert policy.decide(request, fleet(a={}, b={})).ranked[0] == "b"


def holder(cached, requests):
    return {"cached_tokens": cached, "running_requests": requests}


def two_tier(build, fleet, request_view, first, second):
    policy = build("dynamo_two_tier")
    return policy.decide(request_view(tokens=160, blocks=range(10)), fleet(a=holder(*first), b=holder(*second)))


def test_two_tier_cache_threshold_is_strict(build, fleet, request_view):
    assert two_tier(build, fleet, request_view, (0, 0), (96, 4)).ranked[0] == "b"  # six of ten blocks
    assert two_tier(build, fleet, request_view, (0, 0), (80, 4)).ranked[0] == "a"  # five of ten


def test_two_tier_load_needs_both_gates(build, fleet, request_view):
    assert two_tier(build, fleet, request_view, (0, 0), (160, 32)).ranked[0] == "b"
    assert two_tier(build, fleet, request_view, (0, 0), (160, 33)).ranked[0] == "a"
    assert two_tier(build, fleet, request_view, (0, 640), (160, 704)).ranked[0] == "b"  # 1.1 * 640 exactly
    assert two_tier(build, fleet, request_view, (0, 640), (160, 705)).ranked[0] == "a"


def test_two_tier_least_loaded_of_the_best(build, fleet, request_view, reserved):
    policy = build("dynamo_two_tier")
    request = request_view(tokens=160, blocks=range(10))
    view = fleet(a=holder(96, 3), b=holder(96, 2), c=holder(80, 0), d=holder(0, 0))
    decision = policy.decide(request, view)
    assert decision.ranked == ("b", "a", "c", "d")
    assert decision.terms["b"] == {"match": 96, "requests": 2}
    reserved(policy, "c", request)
    assert policy.decide(request, view).ranked == ("b", "a", "d", "c")
