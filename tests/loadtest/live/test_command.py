"""The command as a user starts it, in small: embedded workers, both sides in its files, nothing left behind."""

import json
import signal
import subprocess
import sys

import psutil
import pytest

from loadtest.fleet.process import Process
from tests.loadtest.live.conftest import WORDS
from tests.support.waiting import block_until

COMMAND = [sys.executable, "-m", "loadtest", "live", *WORDS.split()]


@pytest.mark.slow
def test_both_sides_are_measured_and_agree_on_what_was_cached(tmp_path):
    flags = ["--seeds", "1", "--window-s", "3", "--warm-up-s", "0.5", "--rate", "1", "--out", str(tmp_path)]
    done = subprocess.run([*COMMAND, *flags], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "results.json").read_text())
    [seed] = document["seeds"]
    assert set(seed["live"]) == set(seed["modelled"]) == {"lpwl", "round_robin"}
    for rule, live in seed["live"].items():
        ours, theirs = live["measures"]["all"], seed["modelled"][rule]["all"]
        assert live["errors"] == []
        assert ours["answered"] == ours["calls"] == theirs["calls"] > 10
        assert ours["prompt_tokens"] == theirs["prompt_tokens"]
        assert ours["hit_share"] == pytest.approx(theirs["hit_share"], abs=0.15)
        assert 0.0 < ours["ttft_p50_ms"] < 5_000.0
    lpwl, robin = (seed["live"][rule]["measures"]["all"]["hit_share"] for rule in ("lpwl", "round_robin"))
    assert lpwl > robin
    assert "pairs of rules, over all measures" in done.stdout
    page = (tmp_path / "live.md").read_text()
    assert "2 embedded workers (llama-3.1-8b-h100, 40,000 tokens of KV cache each)" in page
    assert "at 1 times the trace's own rate" in page
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [
        "seed-0-lpwl.log",
        "seed-0-round_robin.log",
        "worker-0.log",
        "worker-1.log",
    ]


def three_children(pid):
    parent = psutil.Process(pid)
    block_until(lambda: len(parent.children()) >= 3, 60)
    return parent.children()


def test_ctrl_c_leaves_no_process_behind(tmp_path):
    flags = ["--rate", "1", "--window-s", "30", "--out", str(tmp_path)]
    process = Process([*COMMAND, *flags], "live")
    try:
        children = three_children(process.pid)
        psutil.Process(process.pid).send_signal(signal.SIGINT)
        _, alive = psutil.wait_procs(children, timeout=20)
        assert not alive
        assert process.wait(20) == 130
    finally:
        process.stop()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--trace", "generator:nothing"], "there is no generator 'nothing'"),
        (["--warm-up-s", "5"], "make the window longer"),
        (["--backend", "vllm", "--vllm-env", "nowhere"], "no vllm command (nowhere/bin/vllm)"),
    ],
)
def test_an_impossible_setting_is_refused_by_name(tmp_path, flags, said):
    done = subprocess.run([*COMMAND, *flags, "--out", str(tmp_path)], capture_output=True, text=True, timeout=110)
    assert done.returncode == 2
    assert said in " ".join(done.stdout.split())
