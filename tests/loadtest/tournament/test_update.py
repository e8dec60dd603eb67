import argparse

import msgspec
import pytest

from loadtest.lab import progress
from loadtest.lab.report import plots
from loadtest.tournament import command, update
from loadtest.tournament import scores as files
from loadtest.tournament.contests import Contest
from loadtest.tournament.page import page
from tests.loadtest.tournament.conftest import GENERATOR, TINY
from tests.support.sweep_here import SweepHere


@pytest.fixture
def before(scores):
    """A finished tournament of `TINY`, with rows made by hand, in which random and lpwl played."""
    names = {"ours": "random", "a": "lpwl"}
    given = [row for row in scores.workloads[0].rows if row.policy in names]
    rows = [msgspec.structs.replace(row, policy=names[row.policy]) for row in given]
    played = {"name": "tiny", "trace": GENERATOR, "workers": 2, "profile": TINY.fleet.profile, "tpot_ms": 200.0}
    workload = msgspec.structs.replace(scores.workloads[0], rows=rows, block_tokens=512, **played)
    code = dict.fromkeys(names.values(), "0123456789ab")
    changed = {"policies": ["random", "lpwl"], "window_s": 20.0, "left_out": [], "first_seed": 7, "code": code}
    return msgspec.structs.replace(scores, workloads=[workload], **changed)


@pytest.fixture
def held(before, tmp_path, monkeypatch, capsys):
    """Update a file of these or other scores; the exit code, what was said, and the folder."""
    monkeypatch.setattr(update, "CONTESTS", (TINY,))
    monkeypatch.setattr(progress, "Sweep", SweepHere())
    monkeypatch.setattr(plots, "curves", lambda *asked: {})
    monkeypatch.setenv("COLUMNS", "1000")  # a message with a path stays on one line

    def run(*words, given=before, file="results.json"):
        parser = argparse.ArgumentParser()
        command.register(parser)
        files.write(tmp_path / "results.json", given)
        always = ["--update", str(tmp_path / file), "--out", str(tmp_path / "out"), "--jobs", "1"]
        code = command.run(parser.parse_args([*always, *words]))
        return code, " ".join(capsys.readouterr().out.split()), tmp_path / "out"

    return run


def test_rules_join_at_the_load_1_of_the_file_and_other_rows_stay(held, before):
    code, _, out = held("--policy", "round_robin,lpwl")
    found = files.read(out / "results.json")
    (old,), (new,) = before.workloads, found.workloads
    assert (code, found.policies) == (0, ["random", "lpwl", "round_robin"])
    assert (found.loads, found.seeds, found.window_s, found.first_seed) == (before.loads, 3, 20.0, 7)
    assert (new.load_1_rate, new.load_1_calls_per_s) == (old.load_1_rate, old.load_1_calls_per_s)
    same = [[row for row in one.rows if row.policy == "random"] for one in (old, new)]
    other = [[row for row in one.rows if row.policy == "lpwl"] for one in (old, new)]
    assert same[0] == same[1] and other[0] != other[1]
    assert [(row.load, row.policy) for row in new.rows] == [
        (load, policy) for load in before.loads for policy in found.policies
    ]
    played = [msgspec.json.decode(line)["cell"] for line in (out / "cells.jsonl").open("rb")]
    assert {cell["policy"] for cell in played} == {"round_robin", "lpwl"}, "no load 1.0 is searched for"
    assert {cell["seed"] for cell in played} == {7, 8, 9}
    assert {cell["rate"] for cell in played} == {old.load_1_rate * load for load in before.loads}
    text = (out / "tournament.md").read_text()
    assert text == page(found)
    again = "python -m loadtest tournament --update results.json --policy round_robin,lpwl"
    assert f"Made by `python -m loadtest tournament`, then `{again}`; do not edit." in text
    assert f"Code `random`: 0123456789ab; other rules: {found.code['round_robin']}." in text


def test_flags_that_the_file_decides_and_files_of_something_else_are_refused(held, tmp_path):
    code, said, _ = held("--quick", "--load", "0.6", "--workload", "agents")
    assert code == 2 and "leave out --quick --workload agents --load 0.6" in said
    code, said, _ = held(file="none.json")
    assert code == 2 and "none.json cannot be read: No such file or directory" in said
    (tmp_path / "other.json").write_text('{"asked": "python -m loadtest tournament"}')
    code, said, _ = held(file="other.json")
    assert code == 2 and "other.json is not a results.json of this version" in said


@pytest.mark.parametrize(
    "changed",
    [{"name": "other"}, {"trace": "generator:agents"}, {"workers": 3}, {"block_tokens": 256}, {"ttft_ms": 1.0}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_workload_that_was_played_otherwise_is_refused_by_name(held, before, changed):
    workloads = [msgspec.structs.replace(before.workloads[0], **changed)]
    code, said, _ = held(given=msgspec.structs.replace(before, workloads=workloads))
    assert code == 2 and f"workload {changed.get('name', 'tiny')} was played with another trace, fleet" in said


def test_a_workload_whose_trace_is_missing_is_refused(held, before, monkeypatch):
    recorded = Contest("tiny", "tiny requests", "tiny.jsonl", TINY.fleet, 512)
    monkeypatch.setattr(update, "CONTESTS", (recorded,))
    workloads = [msgspec.structs.replace(before.workloads[0], trace="tiny.jsonl.zst")]
    code, said, _ = held(given=msgspec.structs.replace(before, workloads=workloads))
    assert code == 2
    assert "--update plays all workloads of the file; tiny requests (tiny.jsonl*): --traces is not given" in said
