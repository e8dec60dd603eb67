"""The study of pulls, in small."""

import pytest

from loadtest.studies import pulls
from loadtest.studies.pulls import ARMS, COST, NEVER, Arrivals, cell, main


def test_the_study_resumes_and_compares_each_rule_with_none(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pulls, "WINDOW_S", 4.0)
    small = ["--loads", "1", "--speeds", "150000", "--seeds", "2", "--out", str(tmp_path)]
    main(small)
    printed = capsys.readouterr().out
    rows = [line.split(" | ") for line in printed.splitlines() if " ms" in line]
    assert [row[0] for row in rows] == [f"| {arm}" for arm in ARMS]
    assert [" to " in row[1] for row in rows] == [arm != NEVER for arm in ARMS]
    monkeypatch.setattr(pulls, "run_cell", None)
    main(small)
    assert capsys.readouterr().out == printed


def test_so_many_conversations_are_open_at_once():
    assert cell(COST, 1_000.0, Arrivals(0.5), 1).setting.at_once is None
    burst = cell(COST, 1_000.0, Arrivals(1_000.0, 128), 1)
    assert (burst.setting.at_once, burst.setting.window_s, str(Arrivals(1.0, 128))) == (128, 3_600.0, "128 at once")


def test_one_seed_gives_no_interval(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--seeds", "1", "--out", str(tmp_path)])
    assert "intervals need --seeds of at least 2" in capsys.readouterr().err


def test_a_cell_has_its_rule_and_speed():
    setting = cell(COST, 1_000.0, Arrivals(0.5), 1).setting.pulls
    assert (setting.rule, setting.tokens_per_s) == ("cost", 1_000.0)
