"""``warmroute load --find``: many runs, one after the other, each with prompts of its own."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import count
from typing import Any

import msgspec
from rich.console import Console

from loadtest.load.arrivals import Rates
from loadtest.load.order import Order
from loadtest.load.results import Results
from loadtest.load.search.rules import HighestRate, Stop, Tried, highest_rate, knee
from loadtest.report.sheet import Sheet, print_sheet
from loadtest.report.verdict import Answer
from loadtest.workload.errors import WorkloadError

Play = Callable[[Order, Results, str], Results]
SEED_STEP = 104_729
PROMPTS, STEP_S = 500, 20.0
RANGE = 256.0
"""Rates are searched within this factor of the first one."""
MOST_CONCURRENCY = 256


def find(args: argparse.Namespace, order: Order, console: Console, play: Play) -> tuple[Answer, dict[str, Any]]:
    """Search as ``--find`` says; return the answer, and what was found as JSON.

    Raises:
        WorkloadError: a flag that the search needs is missing.
    """
    seeds = count(order.seed + 1, SEED_STEP)

    def run(results: Results, name: str, **changed: Any) -> Results:
        return play(msgspec.structs.replace(order, seed=next(seeds), **changed), results, name)

    return _knee(args, console, run) if args.find == "knee" else _goodput(args, console, run)


def _goodput(args: argparse.Namespace, console: Console, run: Callable[..., Results]) -> tuple[Answer, dict[str, Any]]:
    if not args.goodput:
        raise WorkloadError("--find goodput needs the goals: --goodput ttft:500 tpot:50")
    start = args.request_rate if args.request_rate not in (None, float("inf")) else 1.0
    prompts = args.num_prompts or PROMPTS

    def at(rate: float, factor: int) -> Tried:
        results = Results(args.goodput, args.attainment, args.warm_up_s)
        number = prompts * factor
        run(results, f"{rate:.3g}/s", rates=Rates.constant(rate), timed=False, num_prompts=number, duration_s=None)
        judged = results.judged()
        saturated = judged.saturated is not None
        return Tried(rate, results.tally.met, results.tally.total, saturated, bool(judged.void))

    found = highest_rate(at, start, args.attainment, start / RANGE, start * RANGE)
    rows = tuple(_row(one, args.attainment) for one in found.runs)
    heads = ("rate/s", "requests", "share in time", "95 % interval", "result")
    print_sheet(console, Sheet(f"highest rate with {args.attainment:.1%} of the requests in time", heads, rows))
    console.print(said(found), highlight=False)
    return _answer(found), {"find": "goodput", "holds": found.holds, "fails": found.fails} | {
        "stop": found.stop.name.lower(),
        "resolved": found.resolved,
        "runs": [asdict(one) for one in found.runs],
    }


def _row(one: Tried, attainment: float) -> tuple[str, ...]:
    between = one.interval
    result = "void" if one.void else "holds" if one.holds(attainment) else "fails"
    more = " (overloaded)" if one.saturated else "" if one.resolved(attainment) else " (not resolved)"
    share, interval = f"{between.share:.3f}", f"{between.low:.3f}-{between.high:.3f}"
    return f"{one.rate:.3g}", f"{one.total:,}", share, interval, result + more


def said(found: HighestRate) -> str:
    """Return the result in words."""
    holds = f"{found.holds:.3g} requests/s hold" if found.holds is not None else "no rate holds"
    fails = f", {found.fails:.3g} fail" if found.fails is not None else ""
    return f"{holds}{fails}: {found.stop}" + ("" if found.resolved else "; a run was not resolved, so it may be off")


def _answer(found: HighestRate) -> Answer:
    if found.stop is Stop.NEVER_HELD:
        return Answer.NOT_MET
    return (
        Answer.MET if found.holds is not None and found.resolved and found.stop is not Stop.VOID else Answer.UNDECIDED
    )


def _knee(args: argparse.Namespace, console: Console, run: Callable[..., Results]) -> tuple[Answer, dict[str, Any]]:
    points: list[tuple[float, float]] = []
    rows: list[tuple[str, ...]] = []
    for at_once in steps(args.max_concurrency or MOST_CONCURRENCY):
        results = Results(args.goodput, args.attainment, args.warm_up_s, open_loop=False)
        length = {
            "num_prompts": args.num_prompts,
            "duration_s": args.duration or (None if args.num_prompts else STEP_S),
        }
        run(results, f"{at_once} at once", max_concurrency=at_once, rates=None, users=None, timed=False, **length)
        tally = results.tally
        rate = tally.completion_tokens / results.duration_s if tally.completed else 0.0
        points.append((at_once, rate))
        ttft_ms, tpot_ms = (tally.samples[name].ordered().at(0.5) * 1e3 for name in ("ttft", "tpot"))
        rows.append((str(at_once), f"{tally.completed:,}", f"{rate:,.0f}", f"{ttft_ms:,.0f}", f"{tpot_ms:,.1f}"))
    heads = ("requests at once", "complete", "output tokens/s", "TTFT p50, ms", "TPOT p50, ms")
    print_sheet(console, Sheet("throughput by concurrency", heads, tuple(rows)))
    found = knee(points)
    console.print("no knee" if found is None else f"knee at {found.at:.0f} requests at once", highlight=False)
    answer = Answer.UNDECIDED if found is None else Answer.MET
    return answer, {"find": "knee", "knee": None if found is None else asdict(found), "points": points}


def steps(most: int) -> Sequence[int]:
    """Return concurrencies up to `most`: each power of two, and its middle to the next one."""
    every = sorted({1, most, *(2**power * part // 2 for power in range(1, 20) for part in (2, 3))})
    return [one for one in every if one <= most]
