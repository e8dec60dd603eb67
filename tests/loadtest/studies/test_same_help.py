"""The study of other rules with hold and lanes around them, in small."""

from types import SimpleNamespace

import pytest

from loadtest.studies import same_help
from loadtest.studies.same_help import DEFAULT, HELP, Run, losses, main, overall, runs_of, tables


def test_the_study_resumes_and_compares_with_the_default(tmp_path, capsys, monkeypatch):
    small = ["--only", "no_reuse", "--loads", "0.6", "--window-s", "20", "--rules", "lpwl", "--out", str(tmp_path)]
    main([*small, "--seeds", "2"])
    printed = capsys.readouterr().out
    assert f"| no_reuse | 0.6 | `lpwl{HELP}` | " in printed
    assert len((tmp_path / "cells.jsonl").read_text().splitlines()) == 6
    monkeypatch.setattr(same_help, "run_cell", None)
    main([*small, "--seeds", "3", "--table"])
    assert capsys.readouterr().out == printed


def test_every_rule_is_played_without_and_with_help_and_the_highest_load_first():
    runs = runs_of(["lpwl"], [0.6, 0.95], range(2), ["no_reuse"])
    assert [run.policy for run in runs[:3]] == [DEFAULT, "lpwl", "lpwl" + HELP]
    assert [run.load for run in runs] == [0.95] * 6 + [0.6] * 6
    assert [run.seed for run in runs[:6]] == [0] * 3 + [1] * 3


def figures(ttft_ms):
    return SimpleNamespace(ttft_mean_ms=ttft_ms, ttft_p99_ms=2 * ttft_ms, goodput_per_s=4.0)


@pytest.fixture
def runs():
    found = {}
    for seed, ttft_ms in enumerate((100.0, 200.0)):
        found[Run(0.6, seed, DEFAULT, "agents")] = figures(ttft_ms)
        found[Run(0.6, seed, "lpwl", "agents")] = figures(ttft_ms * (1.2 + 0.001 * seed))
    return found


def test_the_table_counts_cells_in_which_a_rule_is_worse(runs):
    lines = list(tables(runs))
    assert "| `lpwl` | +18.3 ±0.5 | +0.0 ±0.0 | +18.3 ±0.5 | 1 | 0 | 1 |" in lines
    assert lines[-1].startswith("| agents | 0.6 | `lpwl` | +18.3 ±")


def test_a_seed_counts_once_it_has_played_every_cell(runs):
    assert overall(runs, "lpwl").ttft.mean == pytest.approx(18.3, abs=0.1)
    runs[Run(0.6, 0, DEFAULT, "no_reuse")], runs[Run(0.6, 0, "lpwl", "no_reuse")] = figures(1.0), figures(1.0)
    assert overall(runs, "lpwl") is None
    runs[Run(0.6, 1, DEFAULT, "no_reuse")], runs[Run(0.6, 1, "lpwl", "no_reuse")] = figures(1.0), figures(1.0)
    assert overall(runs, "lpwl").ttft.mean == pytest.approx(18.3 / 2, abs=0.1)


def test_a_seed_without_the_default_is_left_out(runs):
    del runs[Run(0.6, 1, DEFAULT, "agents")]
    assert losses(runs, "lpwl") == {}
