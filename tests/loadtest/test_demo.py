import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from loadtest.demo.handover import verdict
from tests.support.waiting import block_until

COMMAND = [sys.executable, "-P", "-m", "warmroute", "demo"]


def descendants(process):
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.slow
@pytest.mark.measures
def test_the_default_policy_beats_round_robin_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "rows.json"
    command = [*COMMAND, "--conversations", "12", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    baseline, default = json.loads(path.read_text())["rows"]
    assert (baseline["policy"], default["policy"]) == ("round_robin", "marginal_cost")
    assert (baseline["requests"], baseline["errors"]) == (60, 0)
    assert (default["requests"], default["errors"]) == (60, 0)
    assert default["prefill_tokens"] <= 0.7 * baseline["prefill_tokens"]
    assert default["ttft_mean_ms"] <= 0.75 * baseline["ttft_mean_ms"]
    assert default["cached_share"] > baseline["cached_share"]
    assert "prefill tokens executed" in done.stdout


@pytest.mark.slow
@pytest.mark.measures
def test_handovers_are_compared_with_whole_requests(tmp_path):
    path = tmp_path / "sides.json"
    command = [*COMMAND, "--handover", "--workers", "2", "--conversations", "4", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    without, roles = json.loads(path.read_text())["sides"]
    assert (without["placement"], roles["placement"]) == ("no roles", "with roles")
    for side in (without, roles):
        assert (side["chats"]["requests"], side["uploads"]["requests"]) == (12, 1)
        assert (side["chats"]["errors"], side["uploads"]["errors"]) == (0, 0)
        assert side["gap_p99_ms"] > 0
    assert (without["handed_over"], roles["handed_over"] > 0) == (0, True)
    assert "with roles: 1 prefill and 1 decode workers" in done.stdout
    assert "Shorter with prefill and decode workers: " in done.stdout and "Longer with them: " in done.stdout


def test_a_verdict_names_what_got_better_and_worse():
    better, worse, alike = verdict({"chats: TTFT mean, ms": 0.5, "uploads: TTFT mean, ms": 1.2, "gap p99, ms": 1.04})
    assert better.endswith(": chats: TTFT mean (0.50 x).") and worse.endswith(": uploads: TTFT mean (1.20 x).")
    assert alike.endswith(": gap p99 (1.04 x).")
    assert verdict({})[0].endswith(": nothing.")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_all_of_it(number):
    demo = subprocess.Popen(COMMAND, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    block_until(lambda: len(descendants(demo)) >= 5, 30)
    children = descendants(demo)
    os.kill(demo.pid, number)
    _, errors = demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert errors == ""
    assert [child for child in children if child.is_running()] == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--workers", "0"], "--workers"),
        (["--policy", "nope"], "marginal_cost"),
        (["--json", "/no/such/folder/rows.json"], "cannot be written"),
        (["--time-scale", "nan"], "--time-scale"),
        (["--handover", "--policy", "random"], "--policy does not go with --handover"),
        (["--handover", "--keep"], "--keep does not go with --handover"),
        (["--handover", "--workers", "1"], "--handover needs --workers 2 or more"),
    ],
)
def test_a_wrong_flag_is_refused_before_anything_starts(flags, said):
    done = subprocess.run([*COMMAND, *flags], capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert said in done.stderr
