def test_the_product_trades_work_for_requests(build, fleet, request_view):
    policy = build("lmetric")
    # 160 tokens on an idle worker against 32 with three requests: 160 * 1 > 32 * 4 = 128
    view = fleet(a={"uncached_tokens": 160}, b={"uncached_tokens": 32, "running_requests": 3})
    decision = policy.decide(request_view(tokens=160), view)
    assert decision.ranked == ("b", "a")
    assert decision.costs == (128.0, 160.0)
    assert decision.terms["b"] == {"queued_tokens": 0, "uncached_tokens": 32, "requests": 4}
    # with one more, 32 * 5 = 160: equal, and the first has had no turn either
    view = fleet(a={"uncached_tokens": 160}, b={"uncached_tokens": 32, "running_requests": 4})
    assert policy.decide(request_view(tokens=160), view).ranked == ("a", "b")


def test_queued_work_counts_and_an_idle_worker_is_not_free(build, fleet, request_view):
    view = fleet(a={"uncached_tokens": 10_000}, b={"queued_tokens": 90, "uncached_tokens": 10, "running_requests": 1})
    assert build("lmetric").decide(request_view(), view).ranked[0] == "b"


def test_ties_in_turn_and_nothing_to_do_is_one_token(build, fleet, request_view, reserved):
    policy = build("lmetric")
    view = fleet(a={"uncached_tokens": 0, "running_requests": 1}, b={"uncached_tokens": 0}, c={"uncached_tokens": 0})
    assert policy.decide(request_view(tokens=0), view).ranked == ("b", "c", "a")
    reserved(policy, "b", request_view())
    assert policy.decide(request_view(tokens=0), view).ranked == ("c", "b", "a")
