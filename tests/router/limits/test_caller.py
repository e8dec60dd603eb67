import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config.model import LimitsConfig
from router.errors import ErrorKind, RequestError
from router.limits.caller import Charge
from router.limits.registry import RateLimits

NOW_S = 1_000.0


def limits(**sections):
    return RateLimits(msgspec.convert(sections, LimitsConfig))


def anybody(**default):
    return limits(tenants={"default": default}).of(None, None)


def lines(caller):
    pairs = (line.split(": ") for line in caller.lines().decode().splitlines())
    return {name.removeprefix("x-ratelimit-"): value for name, value in pairs}


def test_requests_pass_up_to_the_limit_and_then_at_its_rate():
    caller = anybody(requests_per_minute=60)
    assert all(isinstance(caller.admit(0, NOW_S), Charge) for _ in range(60))
    refused = caller.admit(0, NOW_S)
    assert isinstance(refused, RequestError) and refused.kind is ErrorKind.REQUESTS_PER_MINUTE
    assert refused.retry_after_s == pytest.approx(1.0)
    assert caller.refused
    assert isinstance(caller.admit(0, NOW_S + refused.retry_after_s), Charge)
    assert not caller.refused
    assert isinstance(caller.admit(0, NOW_S + 1.5), RequestError)


def test_a_burst_is_the_size_of_the_bucket_and_not_its_rate():
    caller = anybody(requests_per_minute=60, burst_requests=5)
    assert sum(isinstance(caller.admit(0, NOW_S), Charge) for _ in range(9)) == 5
    assert sum(isinstance(caller.admit(0, NOW_S + 3.0), Charge) for _ in range(9)) == 3


def test_tokens_are_charged_by_estimate_and_corrected_by_usage():
    caller = anybody(tokens_per_minute=6_000)
    first = caller.admit(4_000, NOW_S)
    refused = caller.admit(3_000, NOW_S)
    assert refused.kind is ErrorKind.TOKENS_PER_MINUTE
    assert refused.retry_after_s == pytest.approx(10.0)  # 1,000 tokens at 100 a second
    first.settle(1_000, NOW_S, served=True)
    assert isinstance(caller.admit(5_000, NOW_S), Charge)
    assert lines(caller)["remaining-tokens"] == "0"


def test_a_request_that_used_more_than_estimated_leaves_a_debt():
    caller = anybody(tokens_per_minute=6_000)
    caller.admit(100, NOW_S).settle(6_500, NOW_S, served=True)
    refused = caller.admit(100, NOW_S)
    assert refused.retry_after_s == pytest.approx(6.0)
    assert lines(caller)["remaining-tokens"] == "0"
    assert lines(caller)["reset-tokens"] == "1m5s"


def test_a_request_that_no_worker_served_costs_nothing():
    caller = anybody(requests_per_minute=1, tokens_per_minute=100, max_concurrent_requests=1)
    caller.admit(100, NOW_S).settle(0, NOW_S, served=False)
    assert lines(caller) == lines(anybody(requests_per_minute=1, tokens_per_minute=100)) | {
        "remaining-requests": "1",
        "reset-requests": "0ms",
        "remaining-tokens": "100",
        "reset-tokens": "0ms",
    }
    assert isinstance(caller.admit(100, NOW_S), Charge)


def test_a_charge_is_settled_once():
    caller = anybody(tokens_per_minute=100, max_concurrent_requests=1)
    charge = caller.admit(100, NOW_S)
    for _ in range(3):
        charge.settle(50, NOW_S, served=True)
    assert isinstance(caller.admit(51, NOW_S), RequestError)
    assert isinstance(caller.admit(50, NOW_S), Charge)


def test_requests_at_once_are_limited():
    caller = anybody(max_concurrent_requests=2)
    first, _ = caller.admit(0, NOW_S), caller.admit(0, NOW_S)
    refused = caller.admit(0, NOW_S)
    assert (refused.kind, refused.retry_after_s) == (ErrorKind.CONCURRENT_REQUESTS, 1.0)
    first.settle(0, NOW_S, served=True)
    assert isinstance(caller.admit(0, NOW_S), Charge)
    assert caller.lines() == b""


def test_a_request_that_can_never_pass_says_so():
    refused = anybody(tokens_per_minute=100, burst_tokens=50).admit(51, NOW_S)
    assert (refused.kind, refused.retry_after_s) == (ErrorKind.REQUEST_ABOVE_TOKEN_LIMIT, None)
    assert "requested 51 tokens per minute, at most 50 at once" in refused.message


def test_the_longest_wait_counts():
    caller = anybody(requests_per_minute=60, burst_requests=1, tokens_per_minute=60, max_concurrent_requests=1)
    caller.admit(60, NOW_S)
    refused = caller.admit(30, NOW_S)
    assert (refused.kind, refused.retry_after_s) == (ErrorKind.TOKENS_PER_MINUTE, pytest.approx(30.0))


def test_a_key_keeps_to_its_own_limit_and_to_that_of_its_tenant():
    made = limits(tenants={"red": {"requests_per_minute": 3}}, keys={"one": {"requests_per_minute": 2}})
    one, two, loner = made.of("one", "red"), made.of("two", "red"), made.of("loner", None)
    assert loner is None
    assert [isinstance(one.admit(0, NOW_S), Charge) for _ in range(3)] == [True, True, False]
    assert "key:one" in one.admit(0, NOW_S).message
    assert lines(one)["limit-requests"] == "2"
    assert isinstance(two.admit(0, NOW_S), Charge)
    assert "tenant:red" in two.admit(0, NOW_S).message
    assert lines(two)["limit-requests"] == "3"


def test_a_refusal_by_one_account_charges_neither():
    made = limits(tenants={"red": {"requests_per_minute": 1}}, keys={"one": {"requests_per_minute": 9}})
    one = made.of("one", "red")
    one.admit(0, NOW_S)
    assert isinstance(one.admit(0, NOW_S), RequestError)
    shown = {each["account"]: each["requests"]["remaining"] for each in made.statistics([], NOW_S)}
    assert shown == {"key:one": 8, "tenant:red": 0}


def test_the_default_gives_each_tenant_and_each_key_its_own_bucket():
    made = limits(tenants={"default": {"requests_per_minute": 1}, "blue": {"requests_per_minute": 2}})
    red, blue, loner, other = (made.of(*who) for who in (("a", "red"), ("b", "blue"), ("c", None), ("d", None)))
    assert [isinstance(red.admit(0, NOW_S), Charge) for _ in range(2)] == [True, False]
    assert [isinstance(blue.admit(0, NOW_S), Charge) for _ in range(3)] == [True, True, False]
    assert isinstance(loner.admit(0, NOW_S), Charge) and isinstance(other.admit(0, NOW_S), Charge)
    assert made.of("e", "red").admit(0, NOW_S).kind is ErrorKind.REQUESTS_PER_MINUTE


def test_without_limits_nobody_has_any():
    made = limits()
    assert made.of("a", "red") is made.of(None, None) is None
    assert made.statistics([("a", "red")], NOW_S) == []


def test_a_clock_that_is_behind_another_process_takes_nothing_away():
    caller = anybody(requests_per_minute=60, burst_requests=3)
    caller.admit(0, NOW_S)
    caller.admit(0, NOW_S - 5.0)
    assert lines(caller)["remaining-requests"] == "1"
    assert isinstance(caller.admit(0, NOW_S), Charge)
    assert caller.admit(0, NOW_S).retry_after_s == pytest.approx(1.0)


def test_a_peek_charges_nothing():
    caller = anybody(requests_per_minute=1)
    assert caller.peek(NOW_S) is None
    assert isinstance(caller.admit(0, NOW_S), Charge)
    assert caller.peek(NOW_S).kind is ErrorKind.REQUESTS_PER_MINUTE


STEPS = st.lists(
    st.tuples(st.floats(0, 20), st.integers(0, 400), st.integers(0, 500), st.booleans(), st.booleans()), max_size=60
)


@given(STEPS)
def test_no_more_passes_than_the_buckets_allow(steps):
    """Admitted requests never exceed burst plus rate, running ones never the limit, and Retry-After is honest."""
    caller = anybody(requests_per_minute=30, burst_requests=5, tokens_per_minute=600, max_concurrent_requests=3)
    now_s, admitted, running = NOW_S, 0, []
    for pause_s, tokens, used, served, ends in steps:
        now_s += pause_s
        outcome = caller.admit(tokens, now_s)
        if isinstance(outcome, Charge):
            running.append(outcome)
            admitted += 1
        elif len(running) < 3 and outcome.retry_after_s is not None:
            assert caller.peek(now_s + outcome.retry_after_s + 1e-6) is None
        assert len(running) <= 3
        assert admitted <= 5 + math.floor((now_s - NOW_S) * 0.5 + 1e-6)
        if ends and running:
            charge = running.pop(0)
            charge.settle(used, now_s, served=served)
            admitted -= not served


# requests that are charged while they run


def both(**limited):
    config = {"tenants": {"t": {"tokens_per_minute": 60, "burst_tokens": 1_000}}, "keys": {"k": limited}}
    return limits(**config).of("k", "t")


def left(caller):
    return [account.tokens_left for account in caller._accounts]


def test_a_running_request_is_charged_to_key_and_tenant():
    caller = both(tokens_per_minute=60, burst_tokens=500)
    charge = caller.admit(100, NOW_S)
    assert not charge.raise_to(90, NOW_S), "the estimate covers it"
    assert sorted(left(caller)) == [400, 900]
    assert not charge.raise_to(300, NOW_S)
    assert sorted(left(caller)) == [200, 700]
    charge.settle(350, NOW_S, served=True)
    assert sorted(left(caller)) == [150, 650]


def test_a_debt_above_the_smallest_bucket_is_reported():
    caller = both(tokens_per_minute=60, burst_tokens=500)
    charge = caller.admit(0, NOW_S)
    assert not charge.raise_to(1_000, NOW_S)
    assert charge.raise_to(1_001, NOW_S)
    assert isinstance(caller.admit(0, NOW_S), RequestError)
    charge.settle(0, NOW_S, served=False)
    assert sorted(left(caller)) == [500, 1_000]


def test_an_ended_charge_and_a_caller_without_a_token_limit_owe_nothing():
    caller = anybody(requests_per_minute=60)
    assert not caller.by_tokens and both(requests_per_minute=1).by_tokens
    charge = caller.admit(0, NOW_S)
    assert not charge.raise_to(10**12, NOW_S)
    charge.settle(5, NOW_S, served=True)
    assert not charge.raise_to(10**13, NOW_S)
