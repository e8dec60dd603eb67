def test_the_least_busy_holder_of_the_longest_match(build, fleet, request_view):
    view = fleet(
        a={"cached_tokens": 32, "running_requests": 2},
        b={"cached_tokens": 32, "running_requests": 1},
        c={"cached_tokens": 16},
        d={},
    )
    decision = build("smg_spill").decide(request_view(), view)
    assert decision.ranked == ("b", "a", "c", "d")
    assert decision.reason == "longest match (32% of the prompt)"


def test_a_match_must_exceed_the_threshold(build, fleet, request_view):
    for cached, chosen in [(30, "b"), (31, "a")]:
        view = fleet(a={"cached_tokens": cached, "running_requests": 1}, b={})
        assert build("smg_spill").decide(request_view(tokens=100), view).ranked[0] == chosen


def test_spilling_by_hand(build, fleet, request_view):
    policy = build("smg_spill")
    # four workers, the others idle: 5 requests have mean 1.25, so 5.25 is the limit; 6 have mean 1.5 and 5.5
    assert (
        policy.decide(request_view(), fleet(a={"cached_tokens": 90, "running_requests": 5}, b={}, c={}, d={})).ranked[0]
        == "a"
    )
    assert (
        policy.decide(request_view(), fleet(a={"cached_tokens": 90, "running_requests": 6}, b={}, c={}, d={})).ranked[0]
        == "b"
    )
    # mean 100, 2 sqrt(100) = 20, but 1.5 * 100 is more: 150 stays; one more has mean 100.25 and a limit of 150.4
    rest = {name: {"running_requests": count} for name, count in (("b", 84), ("c", 83), ("d", 83))}
    assert (
        policy.decide(request_view(), fleet(a={"cached_tokens": 90, "running_requests": 150}, **rest)).ranked[0] == "a"
    )
    assert (
        policy.decide(request_view(), fleet(a={"cached_tokens": 90, "running_requests": 151}, **rest)).ranked[0] == "c"
    )


def test_ties_in_turn(build, fleet, request_view, reserved):
    policy = build("smg_spill")
    reserved(policy, "a", request_view())
    assert policy.decide(request_view(), fleet(a={}, b={})).ranked[0] == "b"
