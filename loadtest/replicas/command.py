"""``python -m loadtest replicas``: compare several gateways that share a fleet with one, and cut Redis under load.

It measures four parts. *live*: cached share and balance with one and two gateways, as processes. *sim*: the same with
1, 2, 4 and 8 in virtual time. *exchange*: the CPU time of the messages alone, with 8 replicas and no HTTP. *faults*:
two gateways under load while Redis is stopped, comes back empty, or fails over. It prints each bar and whether it is
met, and exits with 1 if a request failed. The parts live, exchange and faults need redis-server.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadtest.arguments import above_zero, positive
from loadtest.bench.machine import this_machine
from loadtest.fleet.process import StartError
from loadtest.fleet.redis import server_program
from loadtest.peers.cpu import machine_cpu_s
from loadtest.replicas import exchange, faults, live, page, simulated
from loadtest.replicas.cases import cases
from loadtest.replicas.findings import PARTS, Findings, Taken, read, write
from loadtest.workload.conversations import Shape


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--part", action="append", choices=PARTS, help="measure this part only (repeatable)")
    parser.add_argument("--rounds", type=positive, default=1, help="rounds of live (default 1)")
    parser.add_argument("--conversations", type=positive, default=16, help="conversations of live (default 16)")
    parser.add_argument("--seeds", type=positive, default=2, help="seeds of sim (default 2)")
    parser.add_argument(
        "--workload", action="append", choices=simulated.WORKLOADS, help="play this workload of sim only (repeatable)"
    )
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, help="processes of sim (default: cores)")
    parser.add_argument("--exchange-rounds", type=positive, default=3, help="rounds of exchange (default 3)")
    parser.add_argument("--exchange-s", type=above_zero, default=5.0, metavar="S", help="length of each (default 5)")
    parser.add_argument("--fault", action="append", choices=faults.FAULTS, help="play this fault only (repeatable)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for replicas.json and replicas.md; parts that it holds already are kept",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; return the exit code."""
    console = Console(width=170)
    parts: list[str] = args.part or list(PARTS)
    if server_program() is None and parts != ["sim"]:
        sys.stderr.write("replicas needs redis-server: apt-get install redis-server, or use --part sim\n")
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        findings = read(args.out) if args.out is not None else Findings()
        for part in parts:
            findings = _with(part, args, findings, console)
            if args.out is not None:
                write(args.out, findings)
    except (StartError, ValueError) as error:
        sys.stderr.write(f"replicas: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    page.show(console, findings)
    if args.out is not None:
        (args.out / "replicas.md").write_text(page.page(findings), encoding="utf-8")
    return 1 if _failures(findings) else 0


def _with(part: str, args: argparse.Namespace, findings: Findings, console: Console) -> Findings:
    """Return the findings with one more part measured."""
    busy_s, all_s = machine_cpu_s()
    with _bar(console) as progress:
        task = progress.add_task(part, total=_steps(part, args))
        measured = _measured(part, args, lambda: progress.advance(task))
    busy_after_s, all_after_s = machine_cpu_s()
    taken = Taken(
        command=_command(part, sys.argv[1:]),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        machine=this_machine(),
        busy=(busy_after_s - busy_s) / max(1e-9, all_after_s - all_s),
    )
    return msgspec.structs.replace(findings, **{part: measured}, taken={**findings.taken, part: taken})


def _measured(part: str, args: argparse.Namespace, progress: Callable[[], None]) -> object:
    if part == "live":
        return live.measure(Shape(conversations=args.conversations), args.rounds, progress)
    if part == "sim":
        return simulated.simulate(_workloads(args), simulated.COUNTS, args.seeds, args.jobs, progress)
    if part == "exchange":
        return exchange.measure(_plan(args), progress)
    return faults.measure(_faults(args), progress)


def _steps(part: str, args: argparse.Namespace) -> int:
    steps: dict[str, int] = {
        "live": args.rounds * len(cases(live.COUNTS)),
        "sim": len(_workloads(args)) * len(cases(simulated.COUNTS)) * args.seeds,
        "exchange": _plan(args).steps,
        "faults": len(_faults(args)),
    }
    return steps[part]


def _workloads(args: argparse.Namespace) -> Sequence[str]:
    return args.workload or simulated.WORKLOADS


def _faults(args: argparse.Namespace) -> Sequence[str]:
    return args.fault or faults.FAULTS


def _plan(args: argparse.Namespace) -> exchange.Plan:
    return exchange.Plan(seconds=args.exchange_s, rounds=args.exchange_rounds)


def _command(part: str, words: Sequence[str]) -> str:
    """Return the command that measures one part again, without its folder."""
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and word not in ("--out", "--part"):
            kept.append(word)
        skip = not skip and word in ("--out", "--part")
    return " ".join(["python -m loadtest", *kept, "--part", part])


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def _failures(findings: Findings) -> int:
    live_failed = sum(run.failed for played in findings.live for run in played.runs)
    return live_failed + sum(len(healing.failures) for healing in findings.faults)
