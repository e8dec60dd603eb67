"""A tiny tournament, whole: what it writes, and how it goes on after an interruption."""

import argparse
import io
import json
import re
import shutil
from contextlib import redirect_stdout

import pytest

from loadtest.lab import progress, saturation
from loadtest.lab.cell import Fleet
from loadtest.lab.sweep import Sweep, SweepError
from loadtest.tournament import command, scores
from loadtest.tournament import run as running
from loadtest.tournament.contests import CONTESTS, Contest, Extent
from loadtest.tournament.page import page
from loadtest.tournament.run import hold

GENERATOR = "generator:no_reuse:rate_per_s=3,prompt_p50_tokens=4000,prompt_p90_tokens=16000"
TINY = Contest("tiny", "tiny requests", GENERATOR, Fleet(2, "llama-3.1-70b-4xh100"), "A", 512)
EXTENT = Extent(("marginal_cost", "round_robin"), (0.5, 0.9), 2, 30.0)
CELLS = 2 * 2 * 2


class Stopped(Sweep):
    """Ends after a number of results."""

    left = None

    def results(self, cells, on_done):
        def heard(result):
            on_done(result)
            if self.left is not None:
                type(self).left -= 1
                if self.left < 0:
                    raise KeyboardInterrupt

        return super().results(cells, heard)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder in which a tournament has been held, and what was said."""
    out, said = tmp_path_factory.mktemp("tournament"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        patch.setattr(saturation, "PRECISION", 0.3)
        assert hold(EXTENT, [TINY, CONTESTS[0]], None, out, 1) == 0
    return out, " ".join(said.getvalue().split())


@pytest.fixture
def copied(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(saturation, "PRECISION", 0.3)
    monkeypatch.setattr(progress, "Sweep", type("Here", (Stopped,), {}))
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    return tmp_path, progress.Sweep


def lines(out):
    return (out / "cells.jsonl").read_bytes().splitlines(keepends=True)


def test_a_failed_process_is_reported(tmp_path, monkeypatch, capsys):
    def killed(*play):
        raise SweepError("a process was killed")

    monkeypatch.setattr(running, "_findings", killed)
    assert hold(EXTENT, [TINY], None, tmp_path, 1) == 2
    assert "a process was killed" in capsys.readouterr().out


def test_the_files_hold_the_played_scores(finished):
    out, _ = finished
    found = scores.read(out / "results.json")
    cells = [json.loads(line) for line in lines(out)]
    (tiny,) = found.workloads
    assert (tiny.trace, tiny.block_tokens, tiny.ttft_ms, tiny.tpot_ms) == (GENERATOR, 512, 2000.0, 200.0)
    assert (found.policies, found.loads, found.seeds) == (["marginal_cost", "round_robin"], [0.5, 0.9], 2)
    assert len(tiny.rows) == 4 and all(len(row.values["ttft_mean_ms"]) == 2 for row in tiny.rows)
    for row in tiny.rows:
        there = [one for one in cells if (one["cell"]["policy"], one["cell"]["load"]) == (row.policy, row.load)]
        by_seed = sorted(there, key=lambda one: one["cell"]["seed"])
        assert row.values["ttft_p99_ms"] == pytest.approx(
            [one["measures"]["all"]["ttft_p99_ms"] for one in by_seed], rel=1e-5
        )
    assert {one["cell"]["setting"]["models"]["block_tokens"] for one in cells} == {512}
    assert (out / "tournament.md").read_text() == page(found)


def test_its_pictures_are_those_the_page_shows(finished):
    out, _ = finished
    shown = re.findall(r"!\[[^]]*\]\(([^)]*)\)", (out / "tournament.md").read_text())
    assert sorted(shown) == sorted(path.name for path in out.glob("*.png")) and len(shown) == 3


def test_left_out_workloads_and_progress_are_printed(finished):
    out, said = finished
    line = "conversation trace (conversation_trace.jsonl*): --traces is not given"
    assert f"left out: {line}" in said and f"**Left out:** {line}." in (out / "tournament.md").read_text()
    assert "tiny requests: load 1.0 is" in said and "tiny requests: 8 of 8" in said
    assert "1. " in said and "marginal_cost loses" in said


def test_with_all_cells_kept_nothing_is_run_and_the_same_is_written(copied):
    out, _ = copied
    before = {name: (out / name).read_bytes() for name in ("results.json", "tournament.md", "cells.jsonl")}
    (out / "results.json").unlink()
    assert hold(EXTENT, [TINY, CONTESTS[0]], None, out, 1) == 0
    assert {name: (out / name).read_bytes() for name in before} == before


def test_ctrl_c_keeps_cells_and_the_same_command_goes_on(copied, capsys):
    out, sweep = copied
    first = (out / "results.json").read_bytes()
    (out / "results.json").unlink()
    every = lines(out)
    (out / "cells.jsonl").write_bytes(b"".join(every[:-CELLS]))
    sweep.left = len(every) - CELLS + 2
    assert hold(EXTENT, [TINY], None, out, 1) == 130
    assert "stopped; what had finished is kept in" in capsys.readouterr().out
    assert not (out / "results.json").exists()
    kept = lines(out)
    assert len(every) - CELLS < len(kept) < len(every)
    sweep.left = None
    assert hold(EXTENT, [TINY, CONTESTS[0]], None, out, 1) == 0
    assert lines(out)[: len(kept)] == kept and len(lines(out)) == len(every)
    assert (out / "results.json").read_bytes() == first


@pytest.mark.parametrize(
    ("traces", "says"),
    [
        (None, "left out: conversation trace (conversation_trace.jsonl*): --traces is not given"),
        ("empty", "left out: conversation trace (conversation_trace.jsonl*): --traces holds no such file"),
    ],
)
def test_a_tournament_without_workloads_is_refused_with_the_fix(tmp_path, capsys, traces, says):
    folder = tmp_path if traces else None
    assert hold(EXTENT, [CONTESTS[0]], folder, tmp_path / "out", 1) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert says in said and "no workload is left to be played" in said


def test_a_trace_that_cannot_be_read_is_named(tmp_path, capsys):
    (tmp_path / "conversation_trace.jsonl").write_text('{"nothing": 1}\n')
    assert hold(EXTENT, [CONTESTS[0]], tmp_path, tmp_path / "out", 1) == 2
    assert "no known schema has the fields nothing" in " ".join(capsys.readouterr().out.split())


def held(monkeypatch, *words):
    parser, given = argparse.ArgumentParser(), []
    command.register(parser)
    monkeypatch.setattr(running, "hold", lambda *asked: given.append(asked) or 0)
    assert command.run(parser.parse_args(list(words))) == 0
    return given[0]


def test_without_flags_it_is_the_published_table(monkeypatch):
    extent, contests, traces, _, _, asked = held(monkeypatch)
    assert (len(contests), extent.loads, extent.seeds, extent.window_s) == (6, (0.3, 0.6, 0.8, 0.95, 1.05), 10, 1200.0)
    assert extent.policies[0] == "marginal_cost" and {"lpwl", "round_robin", "preble"} <= set(extent.policies)
    assert traces is None and not extent.quick and asked == "python -m loadtest tournament"


def test_flags_make_it_smaller(monkeypatch):
    words = ("--policy", "lpwl,random", "--quick", "--workload", "agents")
    extent, contests, *_, asked = held(monkeypatch, *words)
    assert asked == f"python -m loadtest tournament {' '.join(words)}"
    assert extent.quick and extent.seeds < 10 and extent.policies == ["lpwl", "random"]
    assert [one.name for one in contests] == ["agents"]


def test_loads_seeds_and_windows_are_set_one_by_one(monkeypatch):
    words = ("--quick", "--load", "0.6,0.9", "--seeds", "10", "--window-s", "450")
    extent, *_, asked = held(monkeypatch, *words)
    assert asked == f"python -m loadtest tournament {' '.join(words)}"
    assert (extent.loads, extent.seeds, extent.window_s, extent.quick) == ([0.6, 0.9], 10, 450.0, False)
    assert extent.first_seed == 0
    extent, *_, asked = held(monkeypatch, "--seeds", "30", "--first-seed", "10")
    assert (extent.seeds, extent.first_seed) == (30, 10)
    assert asked == "python -m loadtest tournament --seeds 30 --first-seed 10"
    extent, *_ = held(monkeypatch, "--seeds", "9")
    assert (extent.seeds, extent.window_s, extent.quick) == (9, 1200.0, True)


def test_a_wrong_workload_is_named_with_those_there_are(capsys):
    parser = argparse.ArgumentParser()
    command.register(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--workload", "agents,chess"])
    assert "'chess' is no workload; there are conversation, agents" in capsys.readouterr().err.replace("\n", " ")
