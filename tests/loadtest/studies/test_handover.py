"""The study of KV handovers, in small."""

from dataclasses import replace

import pytest

from loadtest.studies import handover
from loadtest.studies.handover import AGGREGATED, ARMS, COST, cell, main


def test_the_study_resumes_and_compares_cost_with_every_other_row(tmp_path, capsys, monkeypatch):
    short = replace(handover.WORKLOADS["tight"], window_s=4.0)
    monkeypatch.setattr(handover, "WORKLOADS", {"tight": short})
    small = ["--loads", "0.3", "--seeds", "2", "--out", str(tmp_path)]
    main(small)
    printed = capsys.readouterr().out
    assert [line.split(" | ")[0] for line in printed.splitlines() if " ms, " in line] == [f"| {arm}" for arm in ARMS]
    assert f"| {AGGREGATED}: TTFT, ratio | " in printed and "At 0.3: " in printed
    monkeypatch.setattr(handover, "run_cell", None)
    main(small)
    assert capsys.readouterr().out == printed


def test_one_seed_gives_no_interval(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--seeds", "1", "--out", str(tmp_path)])
    assert "intervals need --seeds of at least 2" in capsys.readouterr().err


def test_only_rows_with_a_rule_have_roles():
    assert cell("mixed", AGGREGATED, 0.5, 1).setting.handover is None
    assert cell("mixed", COST, 0.5, 1).setting.handover.rule == "cost"
