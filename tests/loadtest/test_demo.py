import argparse
import json
import os
import signal
import subprocess
import sys
from xml.etree import ElementTree

import psutil
import pytest

from loadtest.demo import kill
from loadtest.demo.command import register
from loadtest.demo.compare import repeating
from loadtest.demo.plot import draw
from loadtest.load.seen import Kind, Seen
from loadtest.report.summary import Row
from router.cli.main import main
from tests.support.commands import run_here
from tests.support.waiting import block_until

COMMAND = [sys.executable, "-P", "-m", "warmroute", "demo"]
SVG = "{http://www.w3.org/2000/svg}"


def played(path, *flags):
    done = subprocess.run([*COMMAND, *flags, "--json", str(path)], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(path.read_text()), done.stdout


@pytest.mark.slow
@pytest.mark.measures
def test_the_default_policy_beats_round_robin(tmp_path):
    document, said = played(tmp_path / "rows.json", "--conversations", "12")
    baseline, default = document["rows"]
    assert (baseline["policy"], default["policy"]) == ("round_robin", "marginal_cost")
    assert (baseline["requests"], baseline["errors"]) == (default["requests"], default["errors"]) == (60, 0)
    assert default["prefill_tokens"] <= 0.7 * baseline["prefill_tokens"]
    assert default["ttft_mean_ms"] <= 0.75 * baseline["ttft_mean_ms"]
    assert default["cached_share"] > baseline["cached_share"]
    assert "prefill tokens executed" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_all_of_it(number):
    command = [*COMMAND, "--workers", "1"]
    demo = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    block_until(lambda: len(psutil.Process(demo.pid).children(recursive=True)) >= 2, 30)
    children = psutil.Process(demo.pid).children(recursive=True)
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
        (["--kill", "--workers", "1"], "--kill needs --workers 2"),
        (["--kill", "--json", "rows.json"], "no --envoy, --json or --plot"),
        (["--plot", "demo.svg"], "pip install 'matplotlib>=3.9'"),
    ],
)
def test_a_wrong_flag_is_refused(monkeypatch, capsys, tmp_path, flags, said):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.chdir(tmp_path)
    code, printed = run_here(capsys, main, ["demo", *flags])
    assert code == 2 and said in printed


def row(policy, ttft_mean_ms):
    return Row(policy, 300, 0, ttft_mean_ms, 0.0, 0.0, 0.0, 0.0, 0.5, 1000)


def test_the_chart_names_both_policies_their_means_and_the_command(tmp_path):
    rows = [row("round_robin", 223.6), row("marginal_cost", 108.2)]
    first, again = tmp_path / "demo.svg", tmp_path / "again.svg"
    for path in (first, again):
        draw(path, rows, "4 workers", "warmroute demo --plot demo.svg")
    assert first.read_bytes() == again.read_bytes()
    root = ElementTree.fromstring(first.read_bytes())  # the file was written a line ago
    found = ["".join(text.itertext()).strip() for text in root.iter(f"{SVG}text")]
    assert {"round robin", "Warmroute", "224", "108 (0.48 x)", "warmroute demo --plot demo.svg"} <= set(found)
    assert "4 workers" in " ".join(found)


def test_the_caption_repeats_changed_flags_and_no_folders():
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    args = parser.parse_args(["demo", "--seed", "3", "--time-scale", "2", "--plot", "/tmp/some.svg"])
    assert repeating(args) == "warmroute demo --time-scale 2.0 --seed 3 --plot some.svg"


def test_deaths_count_broken_streams_gaps_and_equal_answers():
    whole = Seen(0.0, Kind.COMPLETE, stamps_s=[1.0, 1.25, 3.0], text="one")
    other = Seen(0.0, Kind.COMPLETE, stamps_s=[1.0, 1.5], text="other")
    broken = Seen(0.0, Kind.ERROR_EVENT, stamps_s=[1.0, 9.0], text="tw")
    later = Seen(9.5, Kind.COMPLETE, stamps_s=[12.5], text="other")
    shown = kill.sheet(kill.Played([other, broken]), kill.Played([whole, other, later], [9.0, 20.0]), {"one", "two"})
    assert [row[1:] for row in shown.rows] == [
        ("2", "3"), ("1", "0"), ("0", "1"), ("0.50", "1.75"), ("nan", "3.00"), ("1.00", "1.00"),
    ]  # fmt: skip


@pytest.mark.slow
def test_with_migration_no_stream_breaks_when_workers_are_killed(monkeypatch, capsys):
    monkeypatch.setattr(kill, "PAUSE_S", 3.0)
    monkeypatch.setattr(kill, "ANSWER_TOKENS", 60)
    code, printed = run_here(capsys, main, ["demo", "--kill", "--workers", "3", "--conversations", "6"])
    assert code == 0, printed
    rows = {cells[1].strip(): cells[2:4] for line in printed.splitlines() if len(cells := line.split("│")) == 5}
    streams, broken, equal = (
        [int(cell) for cell in rows[name]] for name in ("streams", "broken streams", "equal to an undisturbed answer")
    )
    assert broken[0] >= 1 and broken[1] == 0
    assert streams[1] == equal[1] == 30
