import pytest

from policies.view import FleetView, LifecycleEvent, LifecycleEventKind, RequestView, WorkerId

LEARNED = {"learned": True, "uncached_tokens": 100, "prefill_s": 1.0}


@pytest.fixture
def place(fleet):
    def reserve(policy, worker, at_s=0.0, uncached=100, decode_s=0.0, blocks=(), capacity=0, request_id="r"):
        view = fleet(**{worker: {"uncached_tokens": uncached, "kv_capacity_tokens": capacity}}).workers[0]
        request = RequestView(request_id, "m", uncached, 512, blocks, decode_s=decode_s)
        policy.observe(LifecycleEvent(LifecycleEventKind.RESERVED, request, WorkerId(worker), at_s, None, view))
        return request

    return reserve


def at(view, now_s):
    return FleetView(now_s, view.workers)


def test_explores_by_load_and_own_prefill(build, fleet, request_view, place):
    policy = build("preble")
    place(policy, "a", uncached=300)
    place(policy, "b", uncached=100, decode_s=1.5)
    view = fleet(a=LEARNED, b=LEARNED, c={**LEARNED, "prefill_s": 4.0})
    decision = policy.decide(request_view(), view)
    # a token takes 10 ms: a has 3 s of prefill, b 1 s and 1.5 s of decode; the idle c is slow
    assert decision.costs == pytest.approx((3.5, 4.0, 4.0))
    assert decision.ranked[0] == "b"
    assert decision.terms["a"] == pytest.approx({"load": 3.0, "eviction": 0.0, "prefill": 1.0})
    assert decision.unit == "s"


def test_the_present_request_does_not_change_what_earlier_ones_took(build, fleet, request_view):
    policy = build("preble")
    for worker, prefill_s in [("a", 3.0), ("b", 1.0)]:
        view = fleet(**{worker: {**LEARNED, "uncached_tokens": 300, "prefill_s": prefill_s}}).workers[0]
        policy.observe(
            LifecycleEvent(LifecycleEventKind.RESERVED, request_view(tokens=300), WorkerId(worker), 0.0, None, view)
        )
    costly = {"learned": True, "uncached_tokens": 10, "prefill_s": 5.0}  # behind a long cached context
    decision = policy.decide(request_view(), fleet(a=costly, b=costly))
    assert [decision.terms[worker]["load"] for worker in ("a", "b")] == pytest.approx([3.0, 1.0])


def test_before_anything_is_learned_every_token_takes_the_same_time(build, fleet, request_view, place):
    policy = build("preble")
    place(policy, "a", uncached=300)
    place(policy, "b", uncached=301)
    prior = {"uncached_tokens": 100, "prefill_s": 1.0}
    decision = policy.decide(request_view(), fleet(a=prior, b=prior))
    assert decision.costs == pytest.approx((4.0, 4.01))
    assert decision.unit == "s"


def test_work_leaves_the_window_after_three_minutes(build, fleet, request_view, place):
    policy = build("preble")
    place(policy, "a", at_s=0.0, uncached=500)
    view = fleet(a=LEARNED, b={**LEARNED, "prefill_s": 1.5})
    assert policy.decide(request_view(), at(view, 180.0)).ranked[0] == "b"
    assert policy.decide(request_view(), at(view, 180.1)).ranked[0] == "a"


def test_exploits_only_if_more_is_cached_than_not(build, fleet, request_view, place):
    policy = build("preble")
    place(policy, "a", uncached=900)
    for cached, chosen in [(50, "b"), (51, "a")]:
        view = fleet(a={**LEARNED, "cached_tokens": cached, "uncached_tokens": 100 - cached}, b=LEARNED)
        assert policy.decide(request_view(), view).ranked[0] == chosen


def test_the_least_loaded_holder_of_the_longest_match(build, fleet, request_view, place):
    policy = build("preble")
    place(policy, "a", uncached=200)
    place(policy, "b", uncached=100)
    hit = {**LEARNED, "uncached_tokens": 10, "prefill_s": 0.1}
    view = fleet(
        a={**hit, "cached_tokens": 90}, b={**hit, "cached_tokens": 90}, c={**hit, "cached_tokens": 80}, d=LEARNED
    )
    decision = policy.decide(request_view(), view)
    assert decision.ranked[:2] == ("b", "a")
    assert decision.reason == "exploited: least load of 2 with the longest match"
    assert decision.terms["a"] == pytest.approx({"load": 2.0, "cached_tokens": 90})


def test_the_price_of_an_eviction(build, fleet, request_view, place):
    policy = build("preble")
    capacity = 4 * 512
    for _ in range(3):
        place(policy, "a", uncached=0, blocks=(1, 2), capacity=capacity)
    place(policy, "a", uncached=0, blocks=(3, 4), capacity=capacity)
    new = {"learned": True, "uncached_tokens": 512, "prefill_s": 5.12, "kv_capacity_tokens": capacity}
    decision = policy.decide(request_view(tokens=512), fleet(a=new, b={**new, "prefill_s": 20.0}))
    # one chunk has to go that was used three times: 3 x 512 tokens at 10 ms
    assert decision.terms["a"] == pytest.approx({"load": 0.0, "eviction": 15.36, "prefill": 5.12})
    assert decision.ranked[0] == "b"


@pytest.mark.parametrize(
    ("requests", "largest", "least", "prefill_s", "chosen"),
    [
        (100, 1_000, 600, 0.1, "b"),
        (99, 1_000, 600, 0.1, "a"),  # fewer than 50 per worker
        (100, 1_000, 667, 0.1, "a"),  # 1.5 x 667 is more
        (100, 1_000, 600, 2.1, "a"),  # b would then have more: 6 + 2.1 against 10 - 2.1
    ],
)
def test_the_largest_load_passes_exploits_on(
    build, fleet, request_view, place, requests, largest, least, prefill_s, chosen
):
    policy = build("preble")
    place(policy, "a", uncached=largest)
    place(policy, "b", uncached=least)
    for _ in range(requests - 2):
        place(policy, "a", uncached=0)
    hit = {"learned": True, "cached_tokens": 900, "uncached_tokens": round(prefill_s * 100), "prefill_s": prefill_s}
    other = {"learned": True, "uncached_tokens": round(prefill_s * 100), "prefill_s": prefill_s}
    decision = policy.decide(request_view(tokens=1_000), fleet(a=hit, b=other))
    assert decision.ranked[0] == chosen, decision.reason
    assert decision.reason.startswith("balanced" if chosen == "b" else "exploited")


def test_a_prefix_that_waits_twice_as_long_is_replicated(build, fleet, request_view, place):
    policy = build("preble")
    for number, (at_s, ttft_s) in enumerate([(10.0, 1.0), (190.0, 2.5)]):
        request = place(policy, "a", at_s=at_s, uncached=500, blocks=(1,), request_id=f"r{number}")
        policy.observe(LifecycleEvent(LifecycleEventKind.FIRST_TOKEN, request, WorkerId("a"), at_s + ttft_s))
    hit = {"learned": True, "cached_tokens": 480, "uncached_tokens": 32, "prefill_s": 0.32}
    cold = {"learned": True, "uncached_tokens": 512, "prefill_s": 5.12}
    request = request_view(tokens=512, blocks=(1,), block_tokens=512)
    decision = policy.decide(request, at(fleet(a=hit, b=cold), 200.0))
    assert "waits twice as long" in decision.reason
    assert decision.ranked[0] == "b"  # 5.12 s against 5 s of load and 0.32 s
    assert policy.decide(request, at(fleet(a=hit, b=cold), 361.0)).ranked[0] == "a"
