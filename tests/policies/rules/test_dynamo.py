import pytest

from policies.view import RequestView


def test_default_is_prefill_blocks_less_overlap_plus_decode_blocks(decide):
    first = {"queued_tokens": 160, "cached_tokens": 80, "kv_tokens": 320}
    decision = decide("dynamo_default", a=first, b={"kv_tokens": 640})
    # of a: 160 + 160 - 80 and 320 + 160 tokens, in blocks of 16; of b: 160 and 640 + 160
    assert decision.costs == (45.0, 60.0)
    assert decision.terms["a"] == {"prefill_blocks": 15.0, "decode_blocks": 30.0, "requests": 0.0}


def test_default_credits_slower_tiers_and_never_goes_below_zero(decide):
    tiers = {"GPU": 32, "CPU": 64, "STORE": 64}
    both = {"a": {"cached_tokens": 32, "cached_tokens_by_tier": tiers}, "b": {"cached_tokens": 160}}
    terms = decide("dynamo_default", **both).terms
    # 160 - 32 - 0.75 * 64 - 0.25 * 64 = 64 tokens
    assert (terms["a"]["prefill_blocks"], terms["b"]["prefill_blocks"]) == (pytest.approx(4.0), 0.0)
    weights = {"prefill_load_scale": 2.0, "overlap_credit": 0.5, "request_weight": 3.0}
    decision = decide("dynamo_default", params=weights, a={"cached_tokens": 32, "running_requests": 2})
    assert decision.costs == (2 * 9.0 + 10.0 + 6.0,)


@pytest.mark.parametrize(("kv_tokens", "chosen"), [(161, "b"), (143, "a")])
def test_default_adds_time_and_space_one_to_one(decide, kv_tokens, chosen):
    """A full hit on a worker with much in memory loses to a cold one with none."""
    assert decide("dynamo_default", a={"cached_tokens": 144, "kv_tokens": kv_tokens}, b={}).ranked[0] == chosen


def test_default_ties_in_turn_also_without_identity(build, fleet, reserved):
    policy = build("dynamo_default")
    request = RequestView("r", "m", 100, 0, ())
    reserved(policy, "a", request)
    assert policy.decide(request, fleet(a={}, b={})).ranked[0] == "b"


def holder(cached, requests):
    return {"cached_tokens": cached, "running_requests": requests}


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        ((0, 0), (96, 4), "b"),  # six of ten blocks
        ((0, 0), (80, 4), "a"),  # five of ten
        ((0, 0), (160, 32), "b"),
        ((0, 0), (160, 33), "a"),
        ((0, 640), (160, 704), "b"),  # 1.1 * 640 exactly
        ((0, 640), (160, 705), "a"),
    ],
)
def test_two_tier_thresholds_are_strict_and_load_needs_both(decide, first, second, chosen):
    assert decide("dynamo_two_tier", a=holder(*first), b=holder(*second)).ranked[0] == chosen


def test_two_tier_least_loaded_of_the_best(build, fleet, request_view, reserved):
    policy = build("dynamo_two_tier")
    request = request_view(tokens=160, blocks=range(10))
    view = fleet(a=holder(96, 3), b=holder(96, 2), c=holder(80, 0), d=holder(0, 0))
    decision = policy.decide(request, view)
    assert decision.ranked == ("b", "a", "c", "d")
    assert decision.terms["b"] == {"match": 96, "requests": 2}
    reserved(policy, "c", request)
    assert policy.decide(request, view).ranked == ("b", "a", "d", "c")
