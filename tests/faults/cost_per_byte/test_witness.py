import os

import pytest

from tests.support.witness import Answer, ProcessCost, core_wait_s, own_share_s, spread, summary


def test_a_long_wait_counts_for_those_who_would_have_come_meanwhile():
    waits = spread([0.001] * 90 + [0.05], period_s=0.005)
    assert len(waits) == 100
    assert waits[-3:] == [pytest.approx(0.04), pytest.approx(0.045), pytest.approx(0.05)]


def test_the_summary_has_the_gateways_own_waits_and_all_of_them():
    seen = summary([Answer(0.0, 0.1, 0.1, 0.004)])
    assert (seen.count, seen.max_s, seen.raw_max_s) == (1, 0.004, 0.1)
    assert summary([]).max_s == 0.0


def test_waiting_for_a_core_is_not_the_gateways_doing():
    before, after = {"1": (0.0, 0.0)}, {"1": (0.01, 0.09), "2": (5.0, 5.0)}
    assert own_share_s(0.1, before, after) == pytest.approx(0.01)
    assert core_wait_s(before, after) == pytest.approx(0.09)


def test_waits_of_two_threads_that_follow_each_other_both_count():
    before, after = {"1": (0.0, 0.0), "2": (0.0, 0.0)}, {"1": (0.01, 0.04), "2": (0.01, 0.04)}
    assert own_share_s(0.1, before, after) == pytest.approx(0.02)


def test_waits_at_the_same_time_never_hide_work():
    before, after = {"1": (0.0, 0.0), "2": (0.0, 0.0)}, {"1": (0.05, 0.09), "2": (0.05, 0.09)}
    assert own_share_s(0.2, before, after) == pytest.approx(0.1)


def test_a_stall_without_work_and_without_waiting_is_the_gateways_own():
    assert own_share_s(0.5, {"1": (0.0, 0.0)}, {"1": (0.0, 0.0)}) == 0.5


def test_a_process_is_measured():
    cost = ProcessCost(os.getpid())
    cost.reset_peak()
    held = bytearray(30_000_000)
    assert cost.peak_rss_bytes >= cost.rss_bytes > len(held)
    assert cost.cpu_s > 0 and len(cost.scheduled()) >= 1
