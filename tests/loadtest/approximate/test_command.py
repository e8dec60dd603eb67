"""The command as it is started, in small."""

import json
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "loadtest", "approximate", "--seeds", "2", "--jobs", "2"]


@pytest.mark.slow
def test_a_workload_is_measured_with_every_view(tmp_path):
    path = tmp_path / "scores.json"
    flags = ["--workload", "shared-prompts", "--policy", "lpwl", "--json", str(path)]
    done = subprocess.run([*COMMAND, *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    scores = json.loads(path.read_text())["shared-prompts"]
    assert {"exact, by events", "approximate", "none, round robin"} <= set(scores)
    assert all(row["calls"] == 192 for rows in scores.values() for row in rows)
    assert scores["approximate"][0]["cached_share"] > scores["none, round robin"][0]["cached_share"] + 0.1
    for name in scores:
        assert name in done.stdout
    assert "ours over the best of each kind" in done.stdout


def test_a_trace_that_is_not_there_is_said(tmp_path):
    flags = ["--workload", "trace", "--trace", str(tmp_path / "absent.zst")]
    done = subprocess.run([*COMMAND, *flags], capture_output=True, text=True)
    assert done.returncode == 2
    assert "absent.zst cannot be read" in " ".join(done.stdout.split()).replace("\n", "")


@pytest.mark.parametrize("flags", [["--workload", "absent"], ["--seeds", "0"]])
def test_nonsense_is_refused(flags):
    done = subprocess.run([*COMMAND, *flags], capture_output=True, text=True)
    assert done.returncode == 2 and "error" in done.stderr
