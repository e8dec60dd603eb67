import pytest


def holder(cached, requests):
    return {"cached_tokens": cached, "running_requests": requests}


# loads 8, 0, 0, 0, 0: mean 1.6, sigma 3.2; two sigmas allow 8.0, exactly; 9 would allow 9.0, exactly, too
BUSY = {"a": (90, 8), "b": (20, 0), "c": (0, 0), "d": (0, 0), "e": (0, 0)}


@pytest.mark.parametrize(
    ("loads", "params", "tokens", "ranked", "reason"),
    [
        (
            {"a": (50, 3), "b": (50, 2), "c": (20, 0), "d": (0, 1), "e": (0, 0)},
            {},
            100,
            "baced",
            "longest match within the load limit (50 %)",
        ),
        ({"a": (505, 1), "b": (500, 0)}, {}, 1_000, "ba", "longest match"),  # in whole percent
        ({"a": (9, 1), "b": (0, 0)}, {}, 1_000, "ba", ""),
        (BUSY, {}, 100, "abcde", "longest match"),
        (BUSY, {"deviations": 1.9}, 100, "bcdea", "longest match"),
        ({"a": (90, 4), "b": (0, 1), "c": (0, 1)}, {"deviations": 0.5}, 100, "bca", "fewest requests: nothing matched"),
        ({"a": (90, 16), "b": (0, 16), "c": (0, 0), "d": (0, 0)}, {}, 100, "a", "longest match"),
        ({"a": (90, 17), "b": (0, 17), "c": (0, 0), "d": (0, 0)}, {}, 100, "c", "imbalanced (0 to 17 requests)"),
    ],
)
def test_longest_match_within_the_load_limit_then_fewest_requests(decide, loads, params, tokens, ranked, reason):
    workers = {name: holder(*load) for name, load in loads.items()}
    decision = decide("aibrix_prefix", prompt={"tokens": tokens}, params=params, **workers)
    assert decision.ranked[: len(ranked)] == tuple(ranked)
    assert decision.reason.startswith(reason)


def test_a_busy_holder_has_no_match_and_ties_go_in_turn(build, decide, fleet, request_view, reserved):
    workers = {name: holder(*load) for name, load in BUSY.items()}
    assert decide("aibrix_prefix", prompt={}, params={"deviations": 1.9}, **workers).terms["a"]["match_percent"] == 0
    policy = build("aibrix_prefix", deviations=0.5)
    reserved(policy, "b", request_view())
    assert policy.decide(request_view(), fleet(a=holder(0, 4), b=holder(0, 1), c=holder(0, 1))).ranked[0] == "c"
