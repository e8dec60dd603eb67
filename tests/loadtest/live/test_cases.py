import argparse
from dataclasses import replace
from statistics import fmean

import pytest
from msgspec import structs

from loadtest.live import command
from loadtest.live.cases import CASES
from loadtest.live.findings import Findings, Seed
from loadtest.live.modelled import asked, play
from loadtest.live.ratios import ttft_sheet
from loadtest.live.report import page
from loadtest.live.settings import Unplayable, cells, settled
from loadtest.live.trial import Machine, Trial

MACHINE = Machine(0.8, 0.1, 9.0, 50.0, 8.0, 3.5)
BURST = "shared-prompt-burst"


def parsed(*words):
    parser = argparse.ArgumentParser()
    command.register(parser)
    return settled(parser.parse_args(words))


def test_a_case_settles_all_but_the_workers():
    args = parsed("--case", BURST)
    assert (args.policy, args.seeds, args.rate, args.time_scale) == (CASES[BURST].policy, 10, 1.0, 4.0)
    assert (args.backend, args.out) == ("embedded", None)
    [[held, placed], *_] = cells(args, None)
    assert (held.policy, placed.policy) == ("marginal_cost", "marginal_cost:hold=false")
    assert (held.setting.window_s, held.setting.models.kv_tokens, held.setting.fleet.workers) == (60.0, 65_536, 4)


def test_flags_change_a_case():
    args = parsed("--case", BURST, "--seeds", "2", "--load", "0.5", "--workers", "2", "--policy", "lpwl")
    assert (args.seeds, args.load, args.rate, args.workers, args.policy) == (2, 0.5, None, 2, ["lpwl"])
    assert args.kv_tokens == 65_536


def test_without_a_case_the_usual_settings_count():
    args = parsed("--trace", "generator:rag", "--policy", "lpwl")
    assert (args.load, args.rate, args.seeds, args.window_s, args.warm_up_s) == (0.85, None, 3, 90.0, 20.0)
    assert (args.profile, args.workers, args.kv_tokens, args.time_scale) == ("llama-3.1-70b-4xh100", 4, None, 1.0)


def test_a_trace_without_rules_is_refused():
    with pytest.raises(Unplayable, match="add --policy"):
        parsed("--trace", "generator:rag")


def test_the_burst_is_96_chats_of_four_turns_over_one_prompt():
    plan = asked(cells(parsed("--case", BURST), None)[0][0]).plan
    assert len(plan.sessions) == 96 and {len(session.calls) for session in plan.sessions} == {4}
    assert len({call.prompt.pieces[0] for session in plan.sessions for call in session.calls}) == 1
    assert plan.sessions[-1].start_s == pytest.approx(96 / 5, rel=0.3)


@pytest.fixture
def findings(cell):
    base = play(replace(cell, rate=0.5), 1.0)

    def timed(ms):
        return structs.replace(base, all=structs.replace(base.all, ttft_mean_ms=ms, ttft_p99_ms=2.0 * ms))

    def found(seeds, case=BURST):
        runs = [
            Seed(
                seed,
                {rule: Trial(timed(ms * (1 + seed)), MACHINE, ()) for rule, ms in (("lpwl", 110.0), ("random", 100.0))},
                {rule: timed(ms) for rule, ms in (("lpwl", 90.0), ("random", 100.0))},
            )
            for seed in range(seeds)
        ]
        return Findings(cell, "embedded", 1.0, ["lpwl", "random"], None, runs, case)

    return found


def test_ratios_are_paired_by_seed(findings):
    rows = {row[0]: row[1:] for row in ttft_sheet(findings(2)).rows}
    assert (rows["lpwl, live"][0], rows["lpwl, live"][3]) == ("165.0", "330.0")
    assert rows["random, model"][0] == "100.0"
    assert rows["lpwl / random, live"][0] == "1.100 ±0.000"
    assert rows["lpwl / random, model"][3] == "0.900 ±0.000"
    assert {row[0]: row[1] for row in ttft_sheet(findings(1)).rows}["lpwl / random, live"] == "1.100"


def test_only_a_case_has_ratios(findings):
    assert "| lpwl / random, live | 1.100 ±0.000 |" in page(findings(2))
    assert "lpwl / random" not in page(findings(2, case=None))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["vllm", "embedded"])
def test_the_burst_waits_for_no_hold(backend):
    """In virtual time, ten seeds: mean TTFT with hold is at most 1.02 of without."""
    args = parsed("--case", BURST, "--backend", backend)
    ratios = []
    for held, placed in cells(args, None):
        ratios.append(play(held, args.time_scale).all.ttft_mean_ms / play(placed, args.time_scale).all.ttft_mean_ms)
    assert fmean(ratios) <= 1.02, ratios
