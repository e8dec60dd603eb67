import json
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "loadtest"]


@pytest.mark.slow
def test_gateway_bench_measures_every_proxy(tmp_path):
    path, plot, markdown = tmp_path / "costs.json", tmp_path / "costs.svg", tmp_path / "costs.md"
    flags = ["--quick", "--json", str(path), "--plot", str(plot), "--markdown", str(markdown)]
    done = subprocess.run([*COMMAND, "gateway-bench", *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads(path.read_text())
    (ours,) = (row for row in measured["rows"] if row["name"] == "warmroute")
    assert ours["states"][0].startswith("exact")
    assert "<svg" in plot.read_text()
    assert "gateway-bench --quick" in markdown.read_text()
    assert {"request-2k", "tokens-64", "first byte p50", "active stream"} <= set(measured["samples"])
    for proxies in measured["samples"].values():
        assert {"warmroute", "warmroute round_robin"} <= set(proxies)
        assert all(sample["errors"] == 0 for samples in proxies.values() for sample in samples)


@pytest.mark.slow
def test_events_bench_feeds_the_index():
    flags = ["--rounds", "1", "--requests", "200", "--blocks-per-s", "10000"]
    done = subprocess.run([*COMMAND, "events-bench", *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10,000" in done.stdout


def test_an_unknown_measure_is_named():
    done = subprocess.run([*COMMAND, "gateway-bench", "--measures", "speed"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "'speed' is not one of memory" in done.stderr
