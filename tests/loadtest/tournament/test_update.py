import argparse

import msgspec
import pytest

from loadtest.lab.cell import Fleet
from loadtest.tournament import command, update
from loadtest.tournament import scores as files
from loadtest.tournament.contests import Contest
from loadtest.tournament.page import page

GENERATOR = "generator:no_reuse:rate_per_s=3,prompt_p50_tokens=4000,prompt_p90_tokens=16000"
TINY = Contest("tiny", "tiny requests", GENERATOR, Fleet(2, "llama-3.1-70b-4xh100"), "A", 512)


@pytest.fixture
def before(scores):
    """A finished tournament of `TINY`, with rows made by hand, in which random and lpwl played."""
    names = {"ours": "random", "a": "lpwl"}
    given = [row for row in scores.workloads[0].rows if row.policy in names]
    rows = [msgspec.structs.replace(row, policy=names[row.policy]) for row in given]
    played = {"name": "tiny", "trace": GENERATOR, "workers": 2, "profile": TINY.fleet.profile, "tpot_ms": 200.0}
    workload = msgspec.structs.replace(scores.workloads[0], rows=rows, block_tokens=512, **played)
    code = dict.fromkeys(names.values(), "0123456789ab")
    changed = {"policies": ["random", "lpwl"], "window_s": 30.0, "left_out": [], "first_seed": 7, "code": code}
    return msgspec.structs.replace(scores, workloads=[workload], **changed)


@pytest.fixture
def file(before, tmp_path, monkeypatch):
    monkeypatch.setattr(update, "CONTESTS", (TINY,))
    monkeypatch.setenv("COLUMNS", "1000")  # a message with a path stays on one line
    files.write(tmp_path / "results.json", before)
    return tmp_path / "results.json"


def held(file, *words):
    parser = argparse.ArgumentParser()
    command.register(parser)
    out = ("--out", str(file.parent / "out"), "--jobs", "1")
    return command.run(parser.parse_args(["--update", str(file), *out, *words]))


def test_rules_join_at_the_load_1_of_the_file_and_other_rows_stay(file, before):
    assert held(file, "--policy", "round_robin,lpwl") == 0
    found = files.read(file.parent / "out" / "results.json")
    (old,), (new,) = before.workloads, found.workloads
    assert found.policies == ["random", "lpwl", "round_robin"]
    assert (found.loads, found.seeds, found.window_s, found.first_seed) == (before.loads, 3, 30.0, 7)
    assert (new.load_1_rate, new.load_1_calls_per_s) == (old.load_1_rate, old.load_1_calls_per_s)
    assert [row for row in new.rows if row.policy == "random"] == [row for row in old.rows if row.policy == "random"]
    assert [row for row in new.rows if row.policy == "lpwl"] != [row for row in old.rows if row.policy == "lpwl"]
    assert [(row.load, row.policy) for row in new.rows] == [
        (load, policy) for load in before.loads for policy in found.policies
    ]


def test_no_load_1_is_searched_for(file, before):
    held(file, "--policy", "round_robin")
    played = [msgspec.json.decode(line)["cell"] for line in (file.parent / "out" / "cells.jsonl").open("rb")]
    assert {cell["policy"] for cell in played} == {"round_robin"}
    assert {cell["seed"] for cell in played} == {7, 8, 9}
    assert {cell["rate"] for cell in played} == {before.workloads[0].load_1_rate * load for load in before.loads}


def test_the_page_names_both_commands_and_the_code_of_each_rule(file):
    held(file, "--policy", "round_robin")
    found = files.read(file.parent / "out" / "results.json")
    text = (file.parent / "out" / "tournament.md").read_text()
    assert text == page(found)
    again = "python -m loadtest tournament --update results.json --policy round_robin"
    assert f"Made by `python -m loadtest tournament`, then `{again}`; do not edit." in text
    assert f"Code `round_robin`: {found.code['round_robin']}; other rules: 0123456789ab." in text


def said(capsys):
    return " ".join(capsys.readouterr().out.split())


def test_flags_that_the_file_decides_are_refused(file, capsys):
    assert held(file, "--quick", "--load", "0.6", "--workload", "agents") == 2
    assert "leave out --quick --workload agents --load 0.6" in said(capsys)


def test_a_missing_file_and_another_file_are_refused_by_name(file, capsys):
    assert held(file.parent / "none.json") == 2
    assert "none.json cannot be read: No such file or directory" in said(capsys)
    file.write_text('{"asked": "python -m loadtest tournament"}')
    assert held(file) == 2
    assert "results.json is not a results.json of this version" in said(capsys)


@pytest.mark.parametrize(
    "changed",
    [{"name": "other"}, {"trace": "generator:agents"}, {"workers": 3}, {"block_tokens": 256}, {"ttft_ms": 1.0}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_workload_that_was_played_otherwise_is_refused_by_name(file, before, capsys, changed):
    workloads = [msgspec.structs.replace(before.workloads[0], **changed)]
    files.write(file, msgspec.structs.replace(before, workloads=workloads))
    assert held(file) == 2
    assert f"workload {changed.get('name', 'tiny')} was played with another trace, fleet" in said(capsys)


def test_a_workload_whose_trace_is_missing_is_refused(file, before, capsys, monkeypatch):
    recorded = Contest("tiny", "tiny requests", "tiny.jsonl", TINY.fleet, "A", 512)
    monkeypatch.setattr(update, "CONTESTS", (recorded,))
    workloads = [msgspec.structs.replace(before.workloads[0], trace="tiny.jsonl.zst")]
    files.write(file, msgspec.structs.replace(before, workloads=workloads))
    assert held(file) == 2
    assert "--update plays all workloads of the file; tiny requests (tiny.jsonl*): --traces is not given" in said(
        capsys
    )
