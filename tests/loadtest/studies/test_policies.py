"""The study that compares rules, in small."""

import sys

import pytest

from loadtest.studies import policies
from policies.marginal_cost import ties

CASE = ["--contests", "agents", "--loads", "0.9", "--window-s", "20", "--seeds", "2", "--first-seed", "3", "--rules"]


@pytest.fixture
def study(capsys, monkeypatch):
    """Run the study with the rules and return what it prints."""

    def run(*rules):
        monkeypatch.setattr(sys, "argv", ["policies", *CASE, *rules])
        policies.main()
        return capsys.readouterr().out

    return run


def test_the_rule_without_a_part_is_compared_with_the_whole_rule(study, monkeypatch):
    played, run_cell = [], policies.run_cell
    monkeypatch.setattr(policies, "run_cell", lambda cell: played.append(cell) or run_cell(cell))
    head, *rows = study("marginal_cost", policies.WITHOUT_KV_SPACE).splitlines()[2:]
    assert [name in head for name in ("TTFT %", "p99 %", "goodput %")] == [True] * 3
    assert [row.count("±") for row in rows] == [0, 3]
    assert rows[1].startswith("marginal_cost without KV space among equals")
    assert [cell.seed for cell in played] == [3, 4, 3, 4]
    assert {cell.policy for cell in played} == {"marginal_cost"}


def test_parts_are_left_out_from_source_only(study, monkeypatch, capsys):
    monkeypatch.setattr(ties, "__file__", "ties.so")
    with pytest.raises(SystemExit):
        study("marginal_cost", policies.WITHOUT_KV_WAIT)
    assert "run from source" in capsys.readouterr().err
