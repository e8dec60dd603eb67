"""Cells, played: the same every time, and sensitive to what they are said to be sensitive to."""

from functools import cache

import pytest

from loadtest.lab.run_cell import RuleFailed, run_cell, speeds
from policies import registry
from policies.view import Decision

measures = cache(run_cell)
STEADY = {"jitter": 0.0, "speed_spread": 0.0}


def test_equal_cells_give_equal_measures_to_the_bit_and_another_seed_is_another_run(cell):
    first, again = measures(cell()), run_cell(cell())
    assert first == again and first.all.calls > 20 and first.all.answered == first.all.calls
    assert speeds(cell()) == speeds(cell(policy="round_robin")) != speeds(cell(seed=1))
    assert first != measures(cell(seed=1))


def test_figures_hang_together(cell):
    found = measures(cell())
    every = found.all
    assert 0.0 < every.hit_share < every.reuse_share <= 1.0
    assert every.ttft_p50_ms <= every.ttft_p90_ms <= every.ttft_p99_ms
    assert every.ttft_mean_ms < every.e2e_mean_ms
    assert every.goodput_per_s == pytest.approx(every.goodput_share * found.arrivals_per_s)
    assert found.imbalance >= 1.0 and found.amplification >= 0.9
    assert sum(kind.calls for kind in found.kinds.values()) == every.calls
    assert measures(cell(models={"warm_up_s": 0.0})).all.calls > every.calls, "a cold start measures every call"


def test_siblings_on_one_worker_share_a_running_prefill(cell):
    siblings = "generator:sibling_bursts:prompt_p50_tokens=8000,prompt_p90_tokens=9000,high_siblings=4"
    steady = {"trace": siblings, "models": {"kv_tokens": None, **STEADY}, "rate": 0.5}
    joining, spreading = measures(cell(policy="cache_aware", **steady)), measures(cell(policy="round_robin", **steady))
    assert joining.amplification < 1.1 < 1.5 < spreading.amplification


def test_a_call_that_fits_into_no_cache_is_a_miss(cell):
    found = measures(cell(models={"warm_up_s": 0.0, "kv_tokens": 2_000})).all
    assert 0 < found.rejected < found.calls and found.answered + found.rejected == found.calls
    assert found.goodput_share <= found.answered / found.calls


def test_where_clients_wait_a_slow_fleet_is_sent_fewer_calls(cell):
    patient = {"trace": "generator:agents:rate_per_s=0.3,history_s=100,systems=1,system_tokens=2000,human_share=0"}
    quick, slow = (measures(cell(models={"kv_tokens": None, "max_num_seqs": seqs}, **patient)) for seqs in (None, 1))
    assert slow.all.calls < quick.all.calls
    assert slow.all.goodput_per_s < quick.all.goodput_per_s


@pytest.mark.parametrize(
    "models",
    [
        {"chunk_tokens": 256},
        {"max_num_seqs": 2},
        {"kv_tokens": 20_000},
        {"speed_spread": 0.4},
        {"jitter": 0.0},
        {"step_time": 1.2},
        {"async_scheduling": False},
    ],
    ids=str,
)
def test_each_model_makes_a_difference_and_every_call_ends(cell, models):
    without, changed = measures(cell(rate=2.0)), measures(cell(models=models, rate=2.0))
    assert changed.all.answered + changed.all.timed_out + changed.all.rejected == changed.all.calls > 20
    assert changed != without


class Broken:
    """Decides a few calls, and then raises."""

    def __init__(self, params, rng):
        self.decided = 0

    def decide(self, request, fleet):
        self.decided += 1
        if self.decided > 5:
            raise ValueError("out of ideas")
        return Decision(tuple(worker.id for worker in fleet.workers), "in order")


def test_a_rule_that_fails_is_not_judged_by_what_stood_in_for_it(cell, monkeypatch):
    monkeypatch.setitem(registry.BUILT_IN, "broken", Broken)
    with pytest.raises(RuleFailed, match="policy broken failed: it raised ValueError"):
        run_cell(cell(policy="broken"))
