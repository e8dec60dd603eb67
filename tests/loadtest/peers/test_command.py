"""The comparison in small, as a user starts it: embedded workers, Warmroute alone, nothing left behind."""

import json
import re
import socket
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "loadtest", "peers"]
SMALL = ["--groups", "4", "--conversations", "8", "--turns", "3", "--system-tokens", "1500", "--answer-tokens", "8"]
FAST = ["--starts-per-s", "8", "--pause-s", "0.2", "--time-scale", "1", "--kv-tokens", "8192", "--rounds", "1"]


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
def test_every_contender_meets_the_same_requests_and_empty_caches(tmp_path):
    path = tmp_path / "peers.json"
    chosen = ["--contender", "warmroute:round_robin", "--contender", "warmroute:marginal_cost"]
    missing = ["--contender", "sglang-router:cache_aware", "--peers-env", str(tmp_path / "nothing")]
    flags = ["--simulated", "--workers", "2", *SMALL, *FAST, *chosen, *missing, "--json", str(path)]
    done = subprocess.run([*COMMAND, *flags], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sglang-router:cache_aware is skipped: sglang-router is not installed in" in done.stdout
    document = json.loads(path.read_text())
    runs = {run["contender"]: run for run in document["runs"]}
    assert set(runs) == set(document["commands"]) == {"warmroute:round_robin", "warmroute:marginal_cost"}
    assert "--policy marginal_cost" in document["commands"]["warmroute:marginal_cost"]
    blind, aware = runs["warmroute:round_robin"], runs["warmroute:marginal_cost"]
    assert [(run["requests"], run["errors"]) for run in (blind, aware)] == [(24, 0), (24, 0)]
    assert blind["prompt_tokens"] == aware["prompt_tokens"]
    # what the responses report is what the workers counted: nothing else was sent, and nothing is left from before
    assert blind["cached_share"] == pytest.approx(blind["looked_up_share"], abs=1e-9)
    assert aware["cached_share"] == pytest.approx(aware["looked_up_share"], abs=1e-9)
    assert aware["prefill_tokens"] < blind["prefill_tokens"]
    [reusable] = document["setting"]["reusable_share"]
    assert aware["cached_share"] <= reusable + 0.01
    assert "in units of warmroute:round_robin in the same round" in done.stdout
    ports = {int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", document["commands"]["warmroute:round_robin"])}
    assert len(ports) == 2 and not [port for port in ports if answers(port)]


def test_a_contender_that_fails_does_not_end_the_others(tmp_path):
    flags = ["--simulated", "--workers", "1", *SMALL, *FAST, "--conversations", "1", "--turns", "1"]
    chosen = ["--contender", "warmroute:nonsense", "--contender", "warmroute:round_robin"]
    done = subprocess.run([*COMMAND, *flags, *chosen], capture_output=True, text=True, timeout=110)
    assert done.returncode == 1
    assert "warmroute:nonsense ended with code" in done.stdout
    assert "as the clients saw it" in done.stdout


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--contender", "nginx:round_robin"], "warmroute, sglang-router, vllm-router"),
        (["--groups", "0"], "--groups"),
        (["--time-scale", "nan"], "--time-scale"),
        (["--rounds", "0"], "--rounds"),
    ],
)
def test_a_wrong_flag_is_refused_before_anything_starts(flags, said):
    done = subprocess.run([*COMMAND, *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert said in done.stderr


def test_with_no_contender_installed_there_is_nothing_to_run(tmp_path):
    flags = ["--contender", "vllm-router:kv_aware", "--peers-env", str(tmp_path)]
    done = subprocess.run([*COMMAND, *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "none of the contenders is installed" in done.stderr
