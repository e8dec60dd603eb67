from dataclasses import replace

import pytest

from backends.engine.profile import PrefillCost, load_profile
from loadtest.lab.regret import Placed, prefill_s, regrets_s


def test_the_best_choice_has_none_and_a_queue_counts_as_it_turned_out():
    placed = [
        Placed("a", 0.0, 0, (1.0, 1.5)),  # both idle: the faster one
        Placed("b", 0.5, 0, (0.2, 0.9)),  # 0 is free at 3.0 as it turned out: 2.5 + 0.2 against 0.9
        Placed("c", 4.0, 1, (0.5, 0.5)),  # both free again
    ]
    assert regrets_s(placed, {"a": 3.0, "b": 3.5, "c": 4.6}) == pytest.approx({"a": 0.0, "b": 1.8, "c": 0.0})


def test_a_queue_ends_with_its_slowest_request_not_with_its_last_one():
    placed = [Placed("a", 0.0, 0, (1.0, 1.0)), Placed("b", 0.1, 0, (1.0, 9.0)), Placed("c", 0.2, 0, (0.0, 1.0))]
    assert regrets_s(placed, {"a": 5.2, "b": 2.0})["c"] == pytest.approx(5.0 - 1.0)


def test_a_call_that_left_before_it_began_delays_no_other():
    placed = [Placed("a", 0.0, 0, (1.0, 1.0)), Placed("b", 1.0, 0, (1.0, 0.5))]
    assert regrets_s(placed, {})["b"] == 0.5
    assert regrets_s([], {}) == {}


def test_prefill_time_is_the_profiles_by_chunks_and_speed():
    profile = replace(
        load_profile("llama-3.1-8b-h100"),
        max_num_batched_tokens=100,
        prefill=PrefillCost(a_ms=10.0, b_us=1_000.0, d_ns=0.0),
    )
    assert prefill_s(profile, 1.0, 250, 0) == pytest.approx(0.030 + 0.250)
    assert prefill_s(profile, 2.0, 250, 200) == pytest.approx(0.030)
    assert prefill_s(profile, 1.0, 1, 0) == pytest.approx(0.011)
