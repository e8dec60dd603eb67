"""Scores made by hand, small enough to be worked out on paper."""

import msgspec
import pytest

from loadtest.lab.cell import Fleet
from loadtest.tournament.contests import Contest
from loadtest.tournament.scores import REPORTED, Row, Scores, Workload

GENERATOR = "generator:no_reuse:rate_per_s=3,prompt_p50_tokens=4000,prompt_p90_tokens=16000"
TINY = Contest("tiny", "tiny requests", GENERATOR, Fleet(2, "llama-3.1-70b-4xh100"), 512)
CALM, BUSY, OVER = 0.5, 0.9, 1.05
LOAD_1_PER_S = 7.25


def row(policy, load, ttft, p99, goodput):
    """Three seeds with the values given, on all alike or as listed; `load` calls of load 1.0 are sent."""
    found = {
        "ttft_mean_ms": ttft,
        "ttft_p99_ms": p99,
        "goodput_share": goodput,
        "goodput_per_s": goodput * load * LOAD_1_PER_S,
    }
    spread = {name: value if isinstance(value, list) else [value] * 3 for name, value in found.items()}
    return Row(policy, load, 137, {measure.name: spread.get(measure.name, [0.0] * 3) for measure in REPORTED})


def workload(name, rows, **changed):
    given = {
        "trace": f"generator:{name}",
        "workers": 4,
        "profile": "llama-3.1-8b-h100",
        "ttft_ms": 2000.0,
        "tpot_ms": 100.0,
        "block_tokens": 64,
        "load_1_rate": 1.5,
        "load_1_calls_per_s": LOAD_1_PER_S,
        "round_robin_calls_per_s": None,
    }
    return Workload(name=name, title=f"{name} calls", rows=rows, **(given | changed))


def changed_rows(scores, number, policy, values, load=None):
    """The scores with other values in a rule's rows of a workload, at one load or all."""
    workloads = list(scores.workloads)
    rows = [
        msgspec.structs.replace(row, values=row.values | values)
        if row.policy == policy and load in (None, row.load)
        else row
        for row in workloads[number].rows
    ]
    workloads[number] = msgspec.structs.replace(workloads[number], rows=rows)
    return msgspec.structs.replace(scores, workloads=workloads)


@pytest.fixture
def scores():
    """Two workloads; "ours" is judged.

    first: ours leads everywhere below saturation, and is 10 % behind "a" in mean TTFT at 1.05.
    second: at 0.5 ours is 1 % behind "b" in mean TTFT, on every seed alike (not inferior); at 0.9 it is 4 % behind in
    p99, on every seed alike (worse); all goodputs are equal there, so ours, named first, stands first.
    """
    first = [
        row("ours", CALM, 100.0, 200.0, 1.0),
        row("a", CALM, 120.0, 240.0, 0.98),
        row("b", CALM, 150.0, 300.0, 0.96),
        row("ours", BUSY, 200.0, 400.0, 0.96),
        row("a", BUSY, 300.0, 900.0, 0.8),
        row("b", BUSY, 400.0, 800.0, 0.7),
        row("ours", OVER, 1100.0, 2000.0, 0.84),
        row("a", OVER, 1000.0, 2500.0, 0.6),
        row("b", OVER, 1500.0, 2600.0, 0.5),
    ]
    second = [
        row("ours", CALM, [102.0, 202.0, 302.0], 200.0, 0.95),
        row("a", CALM, [120.0, 240.0, 360.0], 220.0, 0.95),
        row("b", CALM, [100.0, 200.0, 300.0], 210.0, 0.95),
        row("ours", BUSY, 200.0, 416.0, 0.9),
        row("a", BUSY, 210.0, 440.0, 0.9),
        row("b", BUSY, 260.0, 400.0, 0.9),
        row("ours", OVER, 900.0, 2000.0, 0.7),
        row("a", OVER, 990.0, 2500.0, 0.7),
        row("b", OVER, 950.0, 2600.0, 0.7),
    ]
    return Scores(
        asked="python -m loadtest tournament",
        code="0123456789ab",
        quick=False,
        policies=["ours", "a", "b"],
        loads=[CALM, BUSY, OVER],
        seeds=3,
        window_s=1200.0,
        warm_up_s=240.0,
        workloads=[workload("first", first), workload("second", second, round_robin_calls_per_s=3.5)],
        left_out=["some trace: --traces is not given"],
    )
