"""A tiny tournament, whole: what it writes, and how it goes on after an interruption."""

import argparse
import io
import json
import re
import shutil
from contextlib import redirect_stdout

import msgspec
import pytest

from loadtest.lab import progress, saturation
from loadtest.tournament import command, plots
from loadtest.tournament import run as running
from loadtest.tournament.contests import CONTESTS
from loadtest.tournament.page import page
from loadtest.tournament.scores import Scores
from tests.loadtest.tournament.conftest import GENERATOR, TINY
from tests.support.sweep_here import SweepHere

WORDS = "--policy marginal_cost,round_robin --load 0.4,0.9 --seeds 2 --window-s 30 --jobs 1"


def start(out, *more):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saturation, "PRECISION", 1.0)
        patch.setattr(running, "CONTESTS", [TINY, CONTESTS[0]])
        patch.setattr(command, "WORKLOADS", ["tiny", "conversation"])
        parser = argparse.ArgumentParser()
        command.register(parser)
        return command.run(parser.parse_args([*WORDS.split(), "--out", str(out), *more]))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder in which a tournament has been held, and what was said."""
    out, said = tmp_path_factory.mktemp("tournament"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        patch.setattr(progress, "Sweep", SweepHere())
        assert start(out) == 0
    return out, " ".join(said.getvalue().split())


@pytest.fixture
def copied(finished, tmp_path, monkeypatch):
    """A copy of that folder, and a sweep that must not run anything. Plots are left as they are."""
    here = SweepHere(stop_after=0)
    monkeypatch.setattr(progress, "Sweep", here)
    monkeypatch.setattr(plots, "curves", lambda *asked: {})
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    return tmp_path, here


def lines(out):
    return (out / "cells.jsonl").read_bytes().splitlines(keepends=True)


def test_the_files_hold_the_played_scores(finished):
    out, said = finished
    found = msgspec.json.decode((out / "results.json").read_bytes(), type=Scores)
    cells = [json.loads(line) for line in lines(out)]
    (tiny,) = found.workloads
    assert (tiny.trace, tiny.block_tokens, tiny.ttft_ms, tiny.tpot_ms) == (GENERATOR, 512, 2000.0, 200.0)
    assert (found.policies, found.loads, found.seeds) == (["marginal_cost", "round_robin"], [0.4, 0.9], 2)
    assert len(tiny.rows) == 4 and all(len(row.values["ttft_mean_ms"]) == 2 for row in tiny.rows)
    for row in tiny.rows:
        there = [one for one in cells if (one["cell"]["policy"], one["cell"]["load"]) == (row.policy, row.load)]
        by_seed = sorted(there, key=lambda one: one["cell"]["seed"])
        assert row.values["ttft_p99_ms"] == pytest.approx(
            [one["measures"]["all"]["ttft_p99_ms"] for one in by_seed], rel=1e-5
        )
    assert {one["cell"]["setting"]["models"]["block_tokens"] for one in cells} == {512}
    text = (out / "tournament.md").read_text()
    assert text == page(found, "tournament")
    shown = re.findall(r"!\[[^]]*\]\(([^)]*)\)", text)
    assert sorted(shown) == sorted(path.name for path in out.glob("*.png")) and len(shown) == 3
    line = "conversation trace (conversation_trace.jsonl*): --traces is not given"
    assert f"left out: {line}" in said and f"**Left out:** {line}." in text
    assert "tiny requests: load 1.0 is" in said and "tiny requests: 8 of 8" in said
    assert "1. " in said and "marginal_cost loses" in said


def test_with_all_cells_kept_nothing_is_run_and_the_same_is_written(copied):
    out, here = copied
    before = {name: (out / name).read_bytes() for name in ("results.json", "tournament.md", "cells.jsonl")}
    (out / "results.json").unlink()
    assert start(out) == here.ran == 0
    assert {name: (out / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(
    ("trace", "words", "says"),
    [
        (None, (), "(conversation_trace.jsonl*): --traces is not given no workload is left to be played"),
        (None, ("--traces", "."), "(conversation_trace.jsonl*): --traces holds no such file no workload is left"),
        ('{"nothing": 1}\n', ("--traces", "."), "no known schema has the fields nothing"),
    ],
)
def test_what_cannot_be_played_is_named_with_the_fix(tmp_path, capsys, monkeypatch, trace, words, says):
    monkeypatch.chdir(tmp_path)
    if trace is not None:
        (tmp_path / "conversation_trace.jsonl").write_text(trace)
    assert start(tmp_path / "out", "--workload", "conversation", *words) == 2
    assert says in " ".join(capsys.readouterr().out.split())


@pytest.fixture
def held(monkeypatch):
    """The extent, workloads and command that flags amount to."""

    def make(*words):
        parser, given = argparse.ArgumentParser(), []
        command.register(parser)

        def play(console, studies, args, asked, left_out, **options):
            given.append((studies, asked))
            raise running.Refused("enough")

        monkeypatch.setattr(running, "play", play)
        assert command.run(parser.parse_args(list(words))) == 2
        ((studies, asked),) = given
        assert asked == " ".join(["python -m loadtest tournament", *words])
        return studies[0].extent, [one.name for one in studies]

    return make


def test_without_flags_it_is_the_published_table_but_for_the_trace(held):
    extent, contests = held()
    assert (len(contests), extent.loads, extent.seeds, extent.window_s) == (5, (0.3, 0.6, 0.8, 0.95, 1.05), 10, 1200.0)
    assert extent.policies[0] == "marginal_cost" and {"lpwl", "round_robin", "preble"} <= set(extent.policies)
    assert not extent.quick


def test_flags_make_it_smaller_one_by_one(held):
    extent, contests = held("--policy", "lpwl,random", "--quick", "--workload", "agents")
    assert extent.quick and extent.seeds < 10 and extent.policies == ["lpwl", "random"] and contests == ["agents"]
    extent, _ = held("--quick", "--load", "0.6,0.9", "--seeds", "10", "--window-s", "450")
    assert (extent.loads, extent.seeds, extent.window_s, extent.quick) == ([0.6, 0.9], 10, 450.0, False)
    extent, _ = held("--seeds", "9", "--first-seed", "10")
    assert (extent.seeds, extent.first_seed, extent.window_s, extent.quick) == (9, 10, 1200.0, True)


def test_a_wrong_workload_is_named_with_those_there_are(capsys, held):
    with pytest.raises(SystemExit):
        held("--workload", "agents,chess")
    assert "'chess' is no workload; there are conversation, agents" in capsys.readouterr().err.replace("\n", " ")
