"""The study of the default rule's parts, in small."""

import random
from types import SimpleNamespace

import pytest

from loadtest.lab.policies import normal_policy, parse_policy
from loadtest.studies import leave_one_out
from loadtest.studies.leave_one_out import Run, losses, main, order, tables
from loadtest.studies.short.without import VARIANTS, WHOLE, replaceable
from policies.marginal_cost import ties
from policies.registry import build_policy
from policies.view import FleetView, LifecycleEvent, LifecycleEventKind, RequestView, Residency, WorkerId, WorkerView

SMALL = ["--only", "no_reuse", "--loads", "0.6", "--window-s", "20", "--parts", "hold for prefills", "KV wait"]
PROMPT = RequestView("r", "m", 64, 16, (1, 2, 3, 9), decode_s=2.0)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def study(out, capsys):
    """Run the study and return what it prints."""

    def run(*arguments):
        main([*SMALL, "--out", str(out), *arguments])
        return capsys.readouterr().out

    return run


def test_the_study_resumes_and_prints_what_a_part_gains(study, out, monkeypatch):
    printed = study("--seeds", "2")
    assert "Without KV wait, 2 seeds:" in printed
    assert "| no_reuse | 0.6 | " in printed
    assert len((out / "as-shipped" / "cells.jsonl").read_text().splitlines()) == 2
    monkeypatch.setattr(leave_one_out, "run_cell", None)
    assert study("--seeds", "2") == printed
    assert study("--seeds", "3", "--table") == printed
    assert "no_reuse" not in study("--seeds", "2", "--first-seed", "7", "--table")


def test_compiled_modules_are_refused_where_functions_are_replaced(study, monkeypatch, capsys):
    monkeypatch.setattr(ties, "__file__", "ties.so")
    assert not replaceable()
    with pytest.raises(SystemExit):
        study("--seeds", "2")
    assert "run from source" in capsys.readouterr().err


def test_lanes_and_holds_can_be_left_out_of_a_compiled_rule(study, monkeypatch):
    monkeypatch.setattr(ties, "__file__", "ties.so")
    printed = study("--seeds", "2", "--parts", "prefill lanes", "hold for prefills", "hold for KV space")
    assert [f"Without {part}, 2 seeds:" in printed for part in list(VARIANTS)[-3:]] == [True] * 3


def test_first_suspects_come_first_in_every_block_of_seeds():
    runs = list(order(list(VARIANTS), ["a", "b"], [0.6], range(7)))
    assert len(set(runs)) == len(runs) == len(VARIANTS) * 2 * 7
    assert runs[:3] == [
        Run(WHOLE, "a", 0.6, 0),
        Run(WHOLE, "b", 0.6, 0),
        Run(list(VARIANTS)[1], "a", 0.6, 0),
    ]
    late = runs.index(Run("KV wait", "a", 0.6, 0))
    assert {run.seed for run in runs[:late]} == set(range(5))
    assert {run.seed for run in runs[: runs.index(Run(WHOLE, "a", 0.6, 5))]} == set(range(5))


def figures(ttft_ms, goodput_per_s=4.0):
    return SimpleNamespace(ttft_mean_ms=ttft_ms, ttft_p99_ms=2 * ttft_ms, goodput_per_s=goodput_per_s)


@pytest.fixture
def runs():
    """Without the lanes, cell "worse" loses 10 % of mean TTFT, "noise" nothing certain, "better" gains goodput."""
    found = {}
    for seed, ttft_ms in enumerate((100.0, 200.0, 300.0)):
        for name, without in {
            "worse": figures(ttft_ms * (1.10 + 0.001 * seed)),
            "noise": figures(ttft_ms * (1.3, 0.8, 1.1)[seed]),
            "better": figures(ttft_ms, 4.4 + 0.01 * seed),
        }.items():
            found[Run(WHOLE, name, 0.6, seed)] = figures(ttft_ms)
            found[Run("prefill lanes", name, 0.6, seed)] = without
    return found


def test_a_loss_counts_above_one_percent_and_beyond_its_interval(runs):
    found = losses(runs, "prefill lanes")
    assert {name: (loss.counts, loss.gains) for (name, _), loss in found.items()} == {
        "better": (False, True),
        "noise": (False, False),
        "worse": (True, False),
    }
    assert found["worse", 0.6].ttft.mean == pytest.approx(9.6, abs=0.1)
    assert found["better", 0.6].goodput.mean == pytest.approx(-10.25)


def test_the_summary_names_the_cells(runs):
    last = list(tables(runs, [WHOLE, "prefill lanes"]))[-1]
    assert last.startswith("| prefill lanes | ")
    assert last.endswith(" | worse 0.6 | better 0.6 |")


def test_a_seed_that_only_one_of_the_two_has_played_is_left_out(runs):
    del runs[Run(WHOLE, "worse", 0.6, 0)], runs[Run("prefill lanes", "worse", 0.6, 1)]
    assert ("worse", 0.6) not in losses(runs, "prefill lanes")


def view(name, **fields):
    values = {
        "residency": Residency.EXACT,
        "cached_tokens": 0,
        "uncached_tokens": 64,
        "queued_tokens": 0,
        "running_requests": 0,
        "kv_tokens": 0,
        "kv_capacity_tokens": 1_000,
        "queue_wait_s": 0.0,
        "prefill_s": 0.1,
        "utilisation": 0.0,
        "learned": True,
        **fields,
    }
    return WorkerView(id=WorkerId(name), **values)


FULL = {"kv_tokens": 990}
DECIDED_BY = {
    "KV wait": ({"kv_wait_s": 1.0}, {"prefill_s": 0.5}),
    "prefill externality": ({"utilisation": 0.9}, {"prefill_s": 0.2}),
    "decode externality": ({"decode_externality_s": 5.0}, {"prefill_s": 0.2}),
    "standard errors as ties": ({"running_requests": 3, "error_s": 0.1}, {"prefill_s": 0.15}),
    "KV space among equals": (FULL, {"running_requests": 1}),
    "hot-prefix price": (
        {"running_requests": 12, "cached_tokens": 48, "uncached_tokens": 16, "prefill_s": 0.01},
        {},
    ),
    "least recently used among equals": ({}, {}),
}
"""By part: workers a and b, of which the whole rule takes b, and the rule without the part takes a."""


@pytest.mark.parametrize("part", DECIDED_BY)
def test_the_part_that_is_left_out_decides_nothing(part):
    def choice():
        policy = build_policy(parse_policy(VARIANTS[part].rule), random.Random(0))
        for number in range(12):
            request = RequestView(f"before {number}", "m", 64, 16, (1, 2, 3, number + 20))
            policy.observe(LifecycleEvent(LifecycleEventKind.RESERVED, request, WorkerId("a"), 0.0))
        a, b = DECIDED_BY[part]
        fleet = FleetView(0.0, (view("a", **a), view("b", **b)), running_share=lambda worker, *_: float(worker == "a"))
        return policy.decide(PROMPT, fleet).ranked[0]

    assert choice() == "b"
    with VARIANTS[part].applied():
        assert choice() == "a"
    assert choice() == "b", "the part is back"


@pytest.mark.parametrize("part", VARIANTS)
def test_every_variant_builds(part):
    with VARIANTS[part].applied():
        assert normal_policy(VARIANTS[part].rule).startswith("marginal_cost")
