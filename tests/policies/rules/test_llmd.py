import pytest

PROMPT = {"tokens": 161, "blocks": range(10)}


def test_blend_by_hand(build, fleet, request_view):
    view = fleet(
        a={"cached_tokens": 80, "queued_requests": 4, "kv_tokens": 110_000},
        b={"cached_tokens": 0, "queued_requests": 2, "kv_tokens": 0},
        c={"cached_tokens": 160, "queued_requests": 6, "kv_tokens": 110_000},
    )
    decision = build("llmd_blend").decide(request_view(**PROMPT), view)
    # of 3, 2 and 2 points: a has half, half and three quarters; b none, all, all; c all, none, three quarters
    assert decision.ranked == ("c", "a", "b")
    assert decision.costs == pytest.approx((2.5, 3.0, 3.0))
    assert decision.terms["a"] == pytest.approx({"prefix": 1.5, "kv": 0.5, "queue": 1.0})


def test_blend_queue_is_relative_so_one_request_weighs_as_much_as_many(build, fleet, request_view):
    for queued in (1, 100):
        view = fleet(a={"cached_tokens": 96, "queued_requests": queued}, b={})  # 1.8 for the prefix, 2 for the queue
        assert build("llmd_blend").decide(request_view(**PROMPT), view).ranked[0] == "b"
    view = fleet(a={"cached_tokens": 112, "queued_requests": 100}, b={})  # 2.1
    assert build("llmd_blend").decide(request_view(**PROMPT), view).ranked[0] == "a"


def test_blend_without_prompt_blocks_or_capacity(build, fleet, request_view, reserved):
    policy = build("llmd_blend")
    view = fleet(a={"kv_capacity_tokens": 0, "kv_tokens": 5}, b={"kv_capacity_tokens": 10, "kv_tokens": 50})
    decision = policy.decide(request_view(tokens=1), view)
    assert decision.ranked == ("a", "b")
    assert decision.terms["b"] == {"prefix": 3.0, "kv": 2.0, "queue": 0.0}
    reserved(policy, "a", request_view())
    assert policy.decide(request_view(), fleet(a={}, b={})).ranked[0] == "b"


def sticky(build, fleet, request_view, first, second, **params):
    policy = build("llmd_sticky", **params)
    return policy.decide(request_view(**PROMPT), fleet(a=worker(*first), b=worker(*second)))


def worker(cached, queued):
    return {"cached_tokens": cached, "uncached_tokens": 161 - cached, "queued_tokens": queued}


def test_sticky_from_four_fifths_on(build, fleet, request_view):
    assert sticky(build, fleet, request_view, (128, 10_000), (0, 0)).ranked[0] == "a"
    assert sticky(build, fleet, request_view, (112, 10_000), (0, 0)).ranked[0] == "b"


def test_sticky_breaks_just_above_eighteen_seconds(build, fleet, request_view):
    # 18 s at 15,928 tokens/s are 286,704 tokens
    assert sticky(build, fleet, request_view, (160, 286_704), (0, 0)).ranked[0] == "a"
    decision = sticky(build, fleet, request_view, (160, 286_705), (0, 0))
    assert decision.ranked[0] == "b"
    assert "18.0 s behind" in decision.reason
    assert sticky(build, fleet, request_view, (160, 286_705), (0, 1)).ranked[0] == "a"
    assert sticky(build, fleet, request_view, (160, 10**9), (0, 0), max_ttft_penalty_s=0.0).ranked[0] == "a"


def test_sticky_least_work_among_those_kept(build, fleet, request_view, reserved):
    policy = build("llmd_sticky")
    view = fleet(a=worker(160, 50), b=worker(144, 0), c=worker(0, 0), d=worker(96, 0))
    decision = policy.decide(request_view(**PROMPT), view)
    assert decision.ranked == ("b", "a", "d", "c")
    assert decision.reason.endswith("of 2 sticky")
    assert decision.terms["b"] == {"queued_tokens": 0, "uncached_tokens": 17, "sticky": 1.0}
    equal = fleet(a=worker(160, 0), b=worker(160, 0))
    reserved(policy, "a", request_view())
    decision = policy.decide(request_view(**PROMPT), equal)
    assert decision.ranked == ("b", "a")
    assert decision.reason.endswith("all sticky")


def test_sticky_with_a_prompt_that_no_cache_can_serve(build, fleet, request_view):
    decision = build("llmd_sticky").decide(request_view(tokens=16, blocks=(1,)), fleet(a={"queued_tokens": 1}, b={}))
    assert decision.ranked == ("b", "a")
    assert decision.reason.endswith("none sticky")
