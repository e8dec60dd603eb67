"""The study of changes of roles, in small."""

import pytest

from loadtest.studies import role_flips
from loadtest.studies.role_flips import ROWS, cell, main


def test_the_study_resumes_and_compares_flips_with_every_fixed_split(tmp_path, capsys, monkeypatch):
    small = ["--phases", "10", "--window-s", "20", "--seeds", "2", "--out", str(tmp_path)]
    main(small)
    printed = capsys.readouterr().out
    assert [line.split(" | ")[0] for line in printed.splitlines() if "%" in line] == [f"| {name}" for name in ROWS]
    assert sum(" against " in line for line in printed.splitlines()) == 2 * 3
    monkeypatch.setattr(role_flips, "run_cell", None)
    main(small)
    assert capsys.readouterr().out == printed


def test_one_seed_gives_no_interval(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--seeds", "1", "--out", str(tmp_path)])
    assert "intervals need --seeds of at least 2" in capsys.readouterr().err


def test_only_rows_that_say_so_change_roles():
    settings = {name: cell(row, 600.0, 1_200.0, 0).setting.handover for name, row in ROWS.items()}
    assert settings["no roles"] is None and settings["3 + 1"].config.flip_roles == "off"
    assert settings["from 3 + 1"].config.flip_roles == "on" and settings["from 3 + 1"].config.flip_after_s == 300.0
    assert settings["from 3 + 1, sooner"].config.plan_window_s == 60.0
