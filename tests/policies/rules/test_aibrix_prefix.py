def holder(cached, requests):
    return {"cached_tokens": cached, "running_requests": requests}


def test_longest_match_then_fewest_requests(build, fleet, request_view):
    view = fleet(a=holder(50, 3), b=holder(50, 2), c=holder(20, 0), d=holder(0, 1), e=holder(0, 0))
    decision = build("aibrix_prefix").decide(request_view(), view)
    assert decision.ranked == ("b", "a", "c", "e", "d")
    assert decision.reason == "longest match within the load limit (50 %)"


def test_matches_count_in_whole_percent(build, fleet, request_view):
    view = fleet(a=holder(505, 1), b=holder(500, 0))
    assert build("aibrix_prefix").decide(request_view(tokens=1_000), view).ranked == ("b", "a")
    assert build("aibrix_prefix").decide(request_view(tokens=1_000), fleet(a=holder(9, 1), b={})).ranked == ("b", "a")


def test_a_busy_holder_is_passed_over_above_mean_plus_sigmas(build, fleet, request_view):
    # loads 8, 0, 0, 0, 0: mean 1.6, sigma 3.2; two sigmas allow 8.0, exactly; 9 would allow 9.0, exactly, too
    view = fleet(a=holder(90, 8), b=holder(20, 0), c={}, d={}, e={})
    assert build("aibrix_prefix").decide(request_view(), view).ranked[0] == "a"
    decision = build("aibrix_prefix", deviations=1.9).decide(request_view(), view)
    assert decision.ranked == ("b", "c", "d", "e", "a")
    assert decision.terms["a"]["match_percent"] == 0


def test_nothing_matched_or_only_where_it_is_busy(build, fleet, request_view, reserved):
    policy = build("aibrix_prefix", deviations=0.5)
    decision = policy.decide(request_view(), fleet(a=holder(90, 4), b=holder(0, 1), c=holder(0, 1)))
    assert decision.ranked == ("b", "c", "a")
    assert decision.reason == "fewest requests: nothing matched"
    reserved(policy, "b", request_view())
    assert policy.decide(request_view(), fleet(a=holder(0, 4), b=holder(0, 1), c=holder(0, 1))).ranked[0] == "c"


def test_imbalance_ends_matching_just_above_the_difference(build, fleet, request_view):
    for requests, chosen in [(16, "a"), (17, "c")]:
        decision = build("aibrix_prefix").decide(
            request_view(), fleet(a=holder(90, requests), b=holder(0, requests), c={}, d={})
        )
        assert decision.ranked[0] == chosen
    assert decision.reason == "imbalanced (0 to 17 requests)"
