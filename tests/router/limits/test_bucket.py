"""The arithmetic of a token bucket."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.limits.bucket import Rate, shown_time


def test_a_bucket_that_was_never_used_is_full():
    assert Rate(60, 10).level(0.0, 0.0, 1_000.0) == 10


def test_a_bucket_fills_at_its_rate_up_to_its_burst():
    rate = Rate(60, 10)
    assert rate.level(2.0, 100.0, 103.0) == 5.0
    assert rate.level(2.0, 100.0, 200.0) == 10.0
    assert rate.level(-4.0, 100.0, 103.0) == -1.0


def test_a_clock_that_is_behind_the_bucket_takes_nothing_away():
    assert Rate(60, 10).level(2.0, 100.0, 99.0) == 2.0


def test_a_cost_above_the_burst_never_passes():
    assert Rate(60, 10).wait_s(10.0, 11) == math.inf


@given(st.integers(1, 10**7), st.integers(1, 10**7), st.floats(-1e7, 1e7), st.floats(0, 1), st.floats(1.0, 1e6))
def test_a_cost_passes_after_exactly_its_wait(per_minute, burst, level, part, now_s):
    rate, level = Rate(per_minute, burst), min(level, burst)
    cost = part * burst
    wait_s = rate.wait_s(level, cost)
    assert rate.wait_s(rate.level(level, now_s, now_s + wait_s), cost) <= 1e-6 * (1 + wait_s)
    assert wait_s == 0.0 or rate.level(level, now_s, now_s + 0.9 * wait_s) < cost


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0ms"),
        (0.0171, "18ms"),
        (1.0, "1s"),
        (8.634, "8.64s"),
        (60.0, "1m0s"),
        (359.2, "6m0s"),
        (3_600.0, "1h0m0s"),
    ],
)
def test_times_are_written_as_openai_writes_them(seconds, shown):
    assert shown_time(seconds) == shown
