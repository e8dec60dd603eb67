"""`sim`, whole, on a fleet of two, in this process: its files, what it prints, and how it goes on."""

import argparse
import io
import json
import re
import shutil
from contextlib import redirect_stdout

import msgspec
import pytest
from rich.console import Console

from loadtest.lab import progress, saturation
from loadtest.lab.sweep import SweepError
from loadtest.tournament import plots
from loadtest.tournament import sim as command
from loadtest.tournament.scores import Scores
from tests.support.sweep_here import SweepHere


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder in which the command has run, and what it said."""
    out, said = tmp_path_factory.mktemp("sim"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        patch.setattr(progress, "Sweep", SweepHere())
        patch.setattr(saturation, "PRECISION", 1.0)
        assert start(out) == 0
    return out, said.getvalue()


@pytest.fixture
def copied(finished, tmp_path, monkeypatch):
    """A copy of that folder, and a sweep that must not run anything."""
    monkeypatch.setattr(saturation, "PRECISION", 1.0)
    here = SweepHere(stop_after=0)
    monkeypatch.setattr(progress, "Sweep", here)
    monkeypatch.setattr(plots, "curves", lambda *asked: {})
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    return tmp_path, here


def start(out, *more):
    parser = argparse.ArgumentParser()
    command.register(parser)
    words = (
        "--trace generator:multi_turn:rate_per_s=2 --policy lpwl,round_robin --workers 2 --profile llama-3.1-8b-h100"
        " --load 0.5,0.9 --seeds 2 --slo 250:50 --window-s 9 --warm-up-s 2 --kv-tokens 40000 --block-tokens 128"
        f" --jobs 1 --out {out}"
    )
    return command.run(parser.parse_args([*words.split(), *more]))


def test_files_and_words(finished):
    out, said = finished
    # How far it is, where there is no terminal.
    assert "trace: load 1.0 by lpwl: 1.00 x the trace's rate: 3 of 3" in said
    assert "trace: 1 of 8" in said and "trace: 8 of 8" in said
    assert (out / "sim.md").read_text() in said and len(list(out.glob("sim-trace-*.png"))) == 3
    assert "### trace, load 0.9" in said and "| rule | goodput, share of calls | TPOT mean, ms |" in said

    found = msgspec.json.decode((out / "results.json").read_bytes(), type=Scores)
    (workload,) = found.workloads
    assert [(row.policy, row.load) for row in workload.rows] == [
        (policy, load) for load in (0.5, 0.9) for policy in ("lpwl", "round_robin")
    ]
    assert all(len(row.values["hit_share"]) == 2 for row in workload.rows) and found.warm_up_s == 2.0
    cells = [json.loads(line)["cell"] for line in (out / "cells.jsonl").read_bytes().splitlines()]
    assert all(one["rate"] == 0.9 * workload.load_1_rate for one in cells if one["load"] == 0.9)


def test_with_all_cells_kept_nothing_is_run_and_the_same_is_written(copied):
    out, here = copied
    first = (out / "results.json").read_bytes()
    (out / "results.json").unlink()
    assert start(out) == 0
    assert (here.ran, (out / "results.json").read_bytes()) == (0, first)


def test_seeds_begin_where_they_are_said_to(copied):
    out, here = copied
    before = json.loads((out / "results.json").read_bytes())
    assert start(out, "--first-seed", "1", "--seeds", "1") == 0
    assert here.ran == 0, "all of it is among those that are kept"
    found = json.loads((out / "results.json").read_bytes())
    ((first, *_), (row, *_)) = (one["workloads"][0]["rows"] for one in (before, found))
    assert row["values"]["ttft_mean_ms"] == first["values"]["ttft_mean_ms"][1:]
    assert found["workloads"][0]["load_1_rate"] == before["workloads"][0]["load_1_rate"]


def test_ctrl_c_keeps_cells_and_the_same_command_goes_on(copied, capsys):
    out, here = copied
    (out / "results.json").unlink()
    lines = (out / "cells.jsonl").read_bytes().splitlines(keepends=True)
    (out / "cells.jsonl").write_bytes(b"".join(lines[:-5]) + lines[-5][:100])
    here.stop_after = 2
    assert start(out) == 130
    assert "stopped; what had finished is kept in" in capsys.readouterr().out
    assert not (out / "results.json").exists()
    here.stop_after = None
    assert start(out) == 0
    assert here.ran == 5
    again = (out / "cells.jsonl").read_bytes().splitlines()
    assert len(again) == len(lines) and len({json.loads(line)["digest"] for line in again}) == len(lines)


def test_the_bar_says_how_much_is_left_in_80_columns(monkeypatch):
    terminal = Console(file=io.StringIO(), width=80, force_terminal=True)
    with progress.progress_bar(terminal) as bar:
        task = bar.add_task("documents beside chats: load 1.0 by lpwl", total=1_500, completed=0)
        for number in range(0, 1_400, 20):
            bar.update(task, completed=number)
        bar.refresh()
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.file.getvalue())
    assert re.search(r"/1500 0:00:0\d 0:00:0\d left", said)


def test_a_failed_process_of_the_sweep_is_reported(copied, capsys, monkeypatch):
    out, here = copied

    def killed(cells, on_done=None):
        raise SweepError("a process was killed")

    monkeypatch.setattr(here, "results", killed)
    assert start(out) == 2
    assert "a process was killed" in capsys.readouterr().out


def test_cells_of_other_code_are_said_to_be_left_out_and_are_run_again(copied, capsys):
    out, here = copied
    path = out / "cells.jsonl"
    path.write_bytes(re.sub(rb'"code":"[0-9a-f]+"', b'"code":"ffffffffffff"', path.read_bytes(), count=1))
    here.stop_after = None
    assert start(out) == 0
    assert "1 cells of other code are left out" in " ".join(capsys.readouterr().out.split())
    assert here.ran == 1


def test_other_settings_are_other_cells(copied):
    out, here = copied
    assert start(out, "--jitter", "0.01") == 130
    assert here.ran == 0, "nothing that is kept was taken for them"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--trace", "nowhere.jsonl"), "--trace: nowhere.jsonl cannot be read"),
        (("--trace", "generator:nothing"), "--trace: there is no generator 'nothing'; there are"),
        (("--warm-up-s", "9"), "--warm-up-s 9 leaves nothing of --window-s 9"),
        (("--slo", "1:50"), "calls are left to measure"),
        (("--kv-tokens", "31", "--block-tokens", "16"), "a KV cache of 31 tokens has no room for two blocks of 16"),
    ],
)
def test_an_impossible_run_is_refused_with_the_fix(tmp_path, monkeypatch, capsys, more, says):
    monkeypatch.setattr(progress, "Sweep", SweepHere())
    assert start(tmp_path, *more) == 2
    assert says in " ".join(capsys.readouterr().out.split())
