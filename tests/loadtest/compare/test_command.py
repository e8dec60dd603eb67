"""The command as a user starts it, in small: embedded workers, both sides in its files, nothing left behind."""

import json
import signal
import subprocess
import sys

import psutil
import pytest

from loadtest.__main__ import main
from loadtest.fleet.process import Process
from tests.loadtest.compare.conftest import WORDS
from tests.support.commands import run_here
from tests.support.waiting import block_until

COMMAND = [sys.executable, "-m", "loadtest", "compare", *WORDS.split()]


@pytest.mark.slow
def test_both_sides_are_measured_and_agree_on_what_was_cached(tmp_path):
    missing = ["--peer", "sglang-router:cache_aware", "--peers-env", str(tmp_path / "nothing")]
    flags = ["--seeds", "1", "--window-s", "3", "--warm-up-s", "0.5", "--rate", "1", "--out", str(tmp_path), *missing]
    done = subprocess.run([*COMMAND, *flags], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sglang-router:cache_aware: sglang-router is not installed in" in done.stdout
    document = json.loads((tmp_path / "results.json").read_text())
    [seed] = document["seeds"]
    assert set(seed["live"]) == set(seed["modelled"]) == {"lpwl", "round_robin"}
    for rule, live in seed["live"].items():
        ours, theirs = live["measures"]["all"], seed["modelled"][rule]["all"]
        assert live["errors"] == []
        assert ours["answered"] == ours["calls"] == theirs["calls"] > 10
        assert ours["prompt_tokens"] == theirs["prompt_tokens"]
        assert ours["hit_share"] == pytest.approx(theirs["hit_share"], abs=0.15)
        assert live["measures"]["imbalance"] >= 1.0
        assert 0.0 < ours["ttft_p50_ms"] < 5_000.0
    lpwl, robin = (seed["live"][rule]["measures"]["all"]["hit_share"] for rule in ("lpwl", "round_robin"))
    assert lpwl > robin
    page = (tmp_path / "compare.md").read_text()
    assert "2 embedded workers (llama-3.1-8b-h100, 40,000 tokens of KV cache each)" in page
    assert "at 1 times the trace's own rate" in page
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [
        "seed-0-lpwl.log",
        "seed-0-round_robin.log",
        "worker-0.log",
        "worker-1.log",
    ]


def test_ctrl_c_leaves_no_process_behind(tmp_path):
    flags = ["--rate", "1", "--seeds", "1", "--window-s", "10", "--out", str(tmp_path)]
    process = Process([*COMMAND, *flags], "compare")
    try:
        parent = psutil.Process(process.pid)
        block_until(lambda: len(parent.children()) >= 3, 60)
        children = parent.children()
        parent.send_signal(signal.SIGINT)
        _, alive = psutil.wait_procs(children, timeout=20)
        assert not alive
        assert process.wait(20) == 130
    finally:
        process.stop()


@pytest.mark.slow
def test_a_contender_that_fails_does_not_end_the_others(tmp_path):
    away = tmp_path / "bin"
    away.mkdir()
    (away / "python").write_text("#!/bin/sh\necho 1.0\n")
    (away / "smg").write_text("#!/bin/sh\nexit 3\n")
    for name in ("python", "smg"):
        (away / name).chmod(0o755)
    flags = ["--seeds", "1", "--window-s", "2", "--warm-up-s", "0", "--rate", "0.3", "--policy", "lpwl"]
    peer = ["--peer", "smg:round_robin", "--peers-env", str(tmp_path)]
    done = subprocess.run([*COMMAND, *flags, *peer], capture_output=True, text=True, timeout=110)
    assert done.returncode == 1
    assert "smg:round_robin ended with code 3" in done.stdout
    assert "the machine meanwhile" in done.stdout


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--trace", "generator:nothing"], "there is no generator 'nothing'"),
        (["--warm-up-s", "5"], "make the window longer"),
        (["--peer", "nginx:round_robin"], "warmroute, sglang-router, vllm-router"),
        (["--backend", "vllm", "--vllm-env", "nowhere"], "no vllm command (nowhere/bin/vllm)"),
    ],
)
def test_an_impossible_setting_is_refused_by_name(capsys, tmp_path, flags, said):
    code, printed = run_here(capsys, main, [*COMMAND[3:], *flags, "--out", str(tmp_path)])
    assert code == 2
    assert said in " ".join(printed.split())
