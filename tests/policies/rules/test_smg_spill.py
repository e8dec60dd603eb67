import pytest


def test_the_least_busy_holder_of_the_longest_match(decide):
    load = {"a": (32, 2), "b": (32, 1), "c": (16, 0), "d": (0, 0)}
    workers = {name: {"cached_tokens": cached, "running_requests": count} for name, (cached, count) in load.items()}
    decision = decide("smg_spill", prompt={}, **workers)
    assert decision.ranked == ("b", "a", "c", "d")
    assert decision.reason == "longest match (32% of the prompt)"


@pytest.mark.parametrize(("cached", "chosen"), [(30, "b"), (31, "a")])
def test_a_match_must_exceed_the_threshold(decide, cached, chosen):
    assert decide("smg_spill", prompt={}, a={"cached_tokens": cached, "running_requests": 1}, b={}).ranked[0] == chosen


@pytest.mark.parametrize(
    ("requests", "others", "chosen"),
    [
        (5, (0, 0, 0), "a"),  # mean 1.25, so 5.25 is the limit
        (6, (0, 0, 0), "b"),  # mean 1.5 and 5.5
        (150, (84, 83, 83), "a"),  # mean 100, 2 sqrt(100) = 20, but 1.5 * 100 is more
        (151, (84, 83, 83), "c"),  # mean 100.25 and a limit of 150.4
    ],
)
def test_spilling_by_hand(decide, requests, others, chosen):
    rest = {name: {"running_requests": count} for name, count in zip("bcd", others, strict=True)}
    holder = {"cached_tokens": 90, "running_requests": requests}
    assert decide("smg_spill", prompt={}, a=holder, **rest).ranked[0] == chosen


def test_ties_in_turn(build, fleet, request_view, reserved):
    policy = build("smg_spill")
    reserved(policy, "a", request_view())
    assert policy.decide(request_view(), fleet(a={}, b={})).ranked[0] == "b"
