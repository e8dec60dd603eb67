import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.limits.bucket import Rate, shown_time


def test_a_bucket_without_a_limit_holds_everything():
    assert Rate(0).wait_s(math.inf, 10**30) == 0.0


def test_a_cost_above_the_burst_never_passes():
    assert Rate(60, 10).wait_s(10.0, 11) == math.inf


@given(st.integers(1, 10**7), st.integers(1, 10**7), st.floats(-1e7, 1e7), st.floats(0, 1))
def test_a_cost_passes_after_exactly_its_wait(per_minute, burst, level, part):
    rate, level = Rate(per_minute, burst), min(level, burst)
    cost = part * burst
    wait_s = rate.wait_s(level, cost)
    assert rate.wait_s(level + wait_s * rate.per_s, cost) <= 1e-6 * (1 + wait_s)
    assert wait_s == 0.0 or level + 0.9 * wait_s * rate.per_s < cost


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
