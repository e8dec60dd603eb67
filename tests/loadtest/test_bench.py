"""The benches run, and count a run with failures as none. Their figures are not asserted."""

import json
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "loadtest"]


@pytest.mark.slow
def test_gateway_bench_measures_every_proxy(tmp_path):
    path = tmp_path / "costs.json"
    flags = ["--rounds", "1", "--requests", "200", "--connections", "4", "--streams", "8", "--tokens", "60"]
    done = subprocess.run([*COMMAND, "gateway-bench", *flags, "--json", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads(path.read_text())
    for proxies in measured.values():
        assert {"warmroute", "warmroute round_robin"} <= set(proxies)
        assert all(cost["errors"] == 0 and cost["cpu_us"] >= 0 for costs in proxies.values() for cost in costs)


@pytest.mark.slow
def test_events_bench_feeds_the_index():
    flags = ["--rounds", "1", "--requests", "200", "--blocks-per-s", "10000"]
    done = subprocess.run([*COMMAND, "events-bench", *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10,000" in done.stdout
