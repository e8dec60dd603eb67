import pytest

PROMPT = {"tokens": 161, "blocks": range(10)}


def test_blend_by_hand(decide):
    decision = decide(
        "llmd_blend",
        prompt=PROMPT,
        a={"cached_tokens": 80, "queued_requests": 4, "kv_tokens": 110_000},
        b={"cached_tokens": 0, "queued_requests": 2, "kv_tokens": 0},
        c={"cached_tokens": 160, "queued_requests": 6, "kv_tokens": 110_000},
    )
    # of 3, 2 and 2 points: a has half, half and three quarters; b none, all, all; c all, none, three quarters
    assert decision.ranked == ("c", "a", "b")
    assert decision.costs == pytest.approx((2.5, 3.0, 3.0))
    assert decision.terms["a"] == pytest.approx({"prefix": 1.5, "kv": 0.5, "queue": 1.0})


@pytest.mark.parametrize(
    ("cached", "queued", "chosen"),
    [(96, 1, "b"), (96, 100, "b"), (112, 100, "a")],  # 1.8 or 2.1 for the prefix, 2 for the queue, however long it is
)
def test_blend_queue_is_relative_so_one_request_weighs_as_much_as_many(decide, cached, queued, chosen):
    first = {"cached_tokens": cached, "queued_requests": queued}
    assert decide("llmd_blend", prompt=PROMPT, a=first, b={}).ranked[0] == chosen


def test_blend_without_prompt_blocks_or_capacity(build, fleet, request_view, reserved):
    policy = build("llmd_blend")
    view = fleet(a={"kv_capacity_tokens": 0, "kv_tokens": 5}, b={"kv_capacity_tokens": 10, "kv_tokens": 50})
    decision = policy.decide(request_view(tokens=1), view)
    assert decision.ranked == ("a", "b")
    assert decision.terms["b"] == {"prefix": 3.0, "kv": 2.0, "queue": 0.0}
    reserved(policy, "a", request_view())
    assert policy.decide(request_view(), fleet(a={}, b={})).ranked[0] == "b"


def worker(cached, queued):
    return {"cached_tokens": cached, "uncached_tokens": 161 - cached, "queued_tokens": queued}


@pytest.mark.parametrize(
    ("first", "second", "params", "chosen"),
    [
        ((128, 10_000), (0, 0), {}, "a"),  # four fifths
        ((112, 10_000), (0, 0), {}, "b"),
        ((160, 286_704), (0, 0), {}, "a"),  # 18 s at 15,928 tokens/s
        ((160, 286_705), (0, 0), {}, "b"),
        ((160, 286_705), (0, 1), {}, "a"),
        ((160, 10**9), (0, 0), {"max_ttft_penalty_s": 0.0}, "a"),
    ],
)
def test_sticky_from_four_fifths_on_and_up_to_eighteen_seconds(decide, first, second, params, chosen):
    decision = decide("llmd_sticky", prompt=PROMPT, params=params, a=worker(*first), b=worker(*second))
    assert decision.ranked[0] == chosen
    assert ("18.0 s behind" in decision.reason) is (first[0] == 160 and chosen == "b")


def test_sticky_least_work_among_those_kept(build, fleet, request_view, reserved):
    policy = build("llmd_sticky")
    view = fleet(a=worker(160, 50), b=worker(144, 0), c=worker(0, 0), d=worker(96, 0))
    decision = policy.decide(request_view(**PROMPT), view)
    assert decision.ranked == ("b", "a", "d", "c")
    assert decision.reason.endswith("of 2 sticky")
    assert decision.terms["b"] == {"queued_tokens": 0, "uncached_tokens": 17, "sticky": 1.0}
    reserved(policy, "a", request_view())
    decision = policy.decide(request_view(**PROMPT), fleet(a=worker(160, 0), b=worker(160, 0)))
    assert decision.ranked == ("b", "a")
    assert decision.reason.endswith("all sticky")


def test_sticky_with_a_prompt_that_no_cache_can_serve(decide):
    decision = decide("llmd_sticky", prompt={"tokens": 16, "blocks": (1,)}, a={"queued_tokens": 1}, b={})
    assert decision.ranked == ("b", "a")
    assert decision.reason.endswith("none sticky")
