"""Cells, played: the same every time, and sensitive to what they are said to be sensitive to."""

import msgspec
import pytest

from loadtest.lab.run_cell import RuleFailed, run_cell, speeds
from policies import registry
from policies.view import Decision


def measures(cell):
    return run_cell(cell)[0]


def test_equal_cells_give_equal_measures_to_the_bit(cell):
    first, again = measures(cell()), measures(cell())
    assert msgspec.json.encode(first) == msgspec.json.encode(again)
    assert first.all.calls > 20 and first.all.answered == first.all.calls


def test_another_seed_is_another_run_on_other_workers(cell):
    assert speeds(cell()) != speeds(cell(seed=1))
    assert measures(cell()) != measures(cell(seed=1))


def test_every_rule_of_a_seed_meets_the_same_calls_and_workers(cell):
    ours, theirs = measures(cell(models={"tokenise_s": 0.0})), measures(cell(policy="round_robin"))
    assert ours.all.prompt_tokens > 0 and theirs.all.prompt_tokens > 0
    assert speeds(cell()) == speeds(cell(policy="round_robin"))


def test_figures_hang_together(cell):
    found, measured = run_cell(cell())
    every = found.all
    assert 0.0 < every.hit_share < every.reuse_share <= 1.0
    assert every.ttft_p50_ms <= every.ttft_p90_ms <= every.ttft_p99_ms <= found.ttft_quantiles_ms[-1]
    assert every.ttft_mean_ms < every.e2e_mean_ms
    assert every.goodput_per_s == pytest.approx(every.goodput_share * found.arrivals_per_s)
    assert found.imbalance >= 1.0 and found.amplification >= 0.9
    assert sum(kind.calls for kind in found.kinds.values()) == every.calls
    assert measured.decision_p50_us > 0.0 and measured.cpu_s > 0.0


def test_a_cold_start_measures_every_call(cell):
    assert measures(cell(models={"warm_up_s": 0.0})).all.calls > measures(cell()).all.calls


def test_siblings_on_one_worker_share_a_running_prefill(cell):
    siblings = "generator:sibling_bursts:prompt_p50_tokens=8000,prompt_p90_tokens=9000,high_siblings=4"
    steady = {"trace": siblings, "models": {"kv_tokens": None, "jitter": 0.0, "speed_spread": 0.0}, "rate": 0.5}
    joining, spreading = measures(cell(policy="cache_aware", **steady)), measures(cell(policy="round_robin", **steady))
    assert joining.amplification < 1.1 < 1.5 < spreading.amplification


def test_tokenising_and_the_network_are_in_the_time_to_first_token(cell):
    quick = measures(cell(models={"tokenise_s": 0.0, "network_s": 0.0, "jitter": 0.0, "speed_spread": 0.0}, rate=0.2))
    slow = measures(cell(models={"tokenise_s": 0.05, "network_s": 0.02, "jitter": 0.0, "speed_spread": 0.0}, rate=0.2))
    assert slow.all.ttft_p50_ms - quick.all.ttft_p50_ms == pytest.approx(50 + 3 * 20, abs=15)


def test_a_call_that_waits_too_long_is_a_miss(cell):
    found = measures(cell(models={"timeout_s": 0.5, "warm_up_s": 0.0}))
    assert found.all.timed_out > 0
    assert found.all.answered + found.all.timed_out == found.all.calls
    assert found.all.goodput_share <= found.all.answered / found.all.calls


def test_where_clients_wait_a_slow_fleet_is_sent_fewer_calls(cell):
    patient = {"trace": "generator:agents:rate_per_s=0.3,history_s=100,systems=1,system_tokens=2000,human_share=0"}
    quick, slow = (measures(cell(models={"kv_tokens": None, "max_num_seqs": seqs}, **patient)) for seqs in (None, 1))
    assert slow.all.calls < quick.all.calls
    assert slow.all.goodput_per_s < quick.all.goodput_per_s


@pytest.mark.parametrize(
    "models",
    [
        {"kv_late_s": 2.0},
        {"kv_lost_share": 0.01, "kv_replay": False},
        {"chunk_tokens": 256},
        {"max_num_seqs": 2},
        {"kv_tokens": 20_000},
        {"speed_spread": 0.4},
        {"jitter": 0.0},
        {"async_scheduling": False},
        {"reservation_delay_s": 0.5},
        {"replicas": 2},
        {"usage_share": 0.0, "kv_lost_share": 0.02, "kv_replay": False},
        {"usage_share": 0.5, "kv_lost_share": 0.02, "kv_replay": False},
        {"replicas": 2, "replica_delay_s": 5.0},
    ],
    ids=str,
)
def test_each_model_makes_a_difference_and_every_call_ends(cell, models):
    usual, changed = measures(cell(rate=2.0)), measures(cell(models=models, rate=2.0))
    assert changed.all.answered + changed.all.timed_out + changed.all.rejected == changed.all.calls > 20
    assert changed != usual


@pytest.mark.parametrize(("policy", "lengths_count"), [("marginal_cost", True), ("lpwl", False)])
def test_usage_tells_the_lengths_of_answers_and_nothing_else_that_kv_events_do_not(cell, policy, lengths_count):
    uploads = {"trace": "generator:documents_beside_chats:rate_per_s=1", "policy": policy, "rate": 2.0}
    some, every = measures(cell(models={"usage_share": 0.0}, **uploads)), measures(cell(**uploads))
    assert (some != every) == lengths_count
    assert some.all.ttft_mean_ms == pytest.approx(every.all.ttft_mean_ms, rel=0.05)


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


def test_a_prompt_that_fits_into_no_cache_is_turned_away_and_a_miss(cell):
    found = measures(cell(models={"kv_tokens": 2_000, "warm_up_s": 0.0}))
    assert 0 < found.all.rejected < found.all.calls
    assert found.all.answered + found.all.rejected + found.all.timed_out == found.all.calls


def test_lost_events_make_a_difference_where_the_gap_takes_time_to_fill(cell):
    late = {"kv_late_s": 2.0}
    assert measures(cell(models=late | {"kv_lost_share": 0.5}, rate=2.0)) != measures(cell(models=late, rate=2.0))


def test_scraped_load_corrects_replicas_that_do_not_share_theirs(cell):
    def at(scrape_s):
        models = {"replicas": 2, "replica_delay_s": 5.0, "scrape_s": scrape_s}
        return measures(cell(models=models, policy="marginal_cost", rate=2.0))

    assert at(0.1) != at(7.0)
