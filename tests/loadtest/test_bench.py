"""The bench runs, and counts a run with failures as none. Its figures are not asserted."""

import json
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "loadtest", "bench"]


BY_DAY = ("memory,request-2k,tokens-64,first-byte", {"request-2k", "tokens-64", "first byte p50", "active stream"})
EVENTS = pytest.param("events", {"events-500k"}, marks=[pytest.mark.nightly, pytest.mark.timeout(300)])


@pytest.mark.slow
@pytest.mark.parametrize(("measures", "samples"), [BY_DAY, EVENTS])
def test_every_program_is_measured_and_written_to_the_page(tmp_path, measures, samples):
    path = tmp_path / "costs.json"
    flags = ["--quick", "--measure", measures, "--against", "direct,defaults"]
    done = subprocess.run([*COMMAND, *flags, "--everything-on", "--json", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads(path.read_text())
    ours, _, _ = measured["rows"]
    assert ours["states"][0].startswith("exact")
    assert f"`python -m loadtest bench {' '.join(flags[1:])} --everything-on --quick`" in done.stdout
    assert samples <= set(measured["samples"])
    for proxies in measured["samples"].values():
        assert set(proxies) == {"warmroute", "direct", "warmroute defaults"}
        assert all(sample["errors"] == 0 for samples in proxies.values() for sample in samples)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--measure", "speed"], "'speed' is not one of requests"),
        (["--against", "them"], "'them' is not sglang-router"),
    ],
)
def test_an_unknown_name_is_refused(flags, said):
    done = subprocess.run([*COMMAND, *flags], capture_output=True, text=True)
    assert done.returncode == 2
    assert said in done.stdout + done.stderr
