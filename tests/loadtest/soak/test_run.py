"""The soak itself, for a minute, with its real processes; and that it finds what it looks for."""

import json
from collections import Counter

import msgspec
import pytest
from rich.console import Console

from loadtest.__main__ import main
from loadtest.soak.report import Verdict, print_verdict, write_json
from tests.support.commands import run_here


def test_the_verdict_tells_what_failed(tmp_path):
    verdict = Verdict(1, 60.0, 5.0, outcomes=Counter(complete=2, broken=1), faults={"kill": 1})
    assert verdict.passed
    verdict.failures.append("1 errors that no fault explains")
    console = Console(record=True, width=120)
    print_verdict(console, verdict)
    assert "FAILED: 1 errors that no fault explains" in console.export_text()
    write_json(tmp_path / "soak.json", verdict)
    written = msgspec.json.decode((tmp_path / "soak.json").read_bytes())
    assert written["passed"] is False and written["outcomes"]["broken"] == written["failed_requests"] == 1


def test_restarts_need_a_second_worker(capsys):
    code, printed = run_here(capsys, main, ["soak", "--scenario", "restarts", "--workers", "1"])
    assert code == 2 and "--workers 2 or more" in printed


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_minute_of_it(tmp_path, capsys):
    flags = ["--minutes", "1.1", "--calibrate-s", "8", "--seed", "11"]
    code, printed = run_here(capsys, main, ["soak", *flags, "--json", tmp_path / "soak.json", "--logs", tmp_path])
    report = json.loads((tmp_path / "soak.json").read_text())
    assert code == 0, (report["failures"], report["unexplained"], printed[-3_000:])
    assert report["outcomes"]["complete"] > 150
    assert sum(report["faults"].values()) > 3
