"""``python -m loadtest overhead``: measure what a proxy adds, by a protocol that outsiders know.

The rules are those of public gateway benches: a mock upstream that streams a token every 20 ms, the time that the
proxy adds at one connection as paired differences, the request rate within a bound of the tail, the streams until the
first stall, and memory before, under and after load. The row `direct` has no proxy: it shows the limit of clients and
upstream, which share the machine. On a machine that is busy with something else the bench refuses to run.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from rich.console import Console

from loadtest.arguments import above_zero, positive
from loadtest.bench.gateway import MIN_WIDTH, allow_files, folder_for, names, row_of
from loadtest.bench.machine import this_machine
from loadtest.bench.measures.catalogue import OVERHEAD
from loadtest.bench.measures.subject import Setting
from loadtest.bench.page import overhead_page
from loadtest.bench.proxies.entrant import Entrant, Place, Proxy
from loadtest.bench.proxies.entrants import entrants
from loadtest.bench.results import Results, write
from loadtest.bench.rounds import Bench
from loadtest.bench.table import print_tables

QUICK = Setting(window_s=0.3, connections=8)
BUSY_SHARE = 0.1
"""CPU use of other programs, over all cores, from which the machine counts as busy."""
LOOK_S = 1.0


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--rounds", type=positive, default=3, help="rounds over all proxies (default %(default)s)")
    parser.add_argument(
        "--window-s", type=above_zero, default=3.0, help="length of one measurement (default %(default)g)"
    )
    parser.add_argument("--connections", type=positive, default=32, help="clients under load (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one round of short windows, to see that the bench runs")
    parser.add_argument("--force", action="store_true", help="measure on a busy machine, too")
    parser.add_argument("--only", type=names, default=(), metavar="PROXY,...", help="proxies to measure (default: all)")
    parser.add_argument(
        "--peers", action="store_true", help="also measure the routers from PyPI; missing ones are installed"
    )
    parser.add_argument("--peers-env", type=Path, default=Path(".venv-bench"), metavar="DIR", help="their environments")
    parser.add_argument("--compiled-env", type=Path, metavar="DIR", help="environment with a compiled Warmroute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the figures as a page for the docs")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the output of proxies and stand-ins")


def run(args: argparse.Namespace) -> int:
    """Measure, print and write the results; return 1 if any request failed, 2 on a busy machine."""
    busy = psutil.cpu_percent(interval=LOOK_S) / 100
    if busy > BUSY_SHARE and not args.force:
        print(
            f"other programs use {busy:.0%} of the CPUs, more than {BUSY_SHARE:.0%}, so that no figure would count: "
            "stop them, or give --force",
            file=sys.stderr,
        )
        return 2
    console = Console()
    console.width = max(console.width, MIN_WIDTH)
    allow_files()
    listed = entrants(args.peers_env if args.peers else None, args.compiled_env, args.only, console.out)
    listed = [direct(), *listed] if not args.only or "direct" in args.only else listed
    setting = QUICK if args.quick else Setting(window_s=args.window_s, connections=args.connections)
    results = Results(
        command=_command(args),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        machine=this_machine(),
        rounds=1 if args.quick else args.rounds,
        window_s=setting.window_s,
        connections=setting.connections,
        memory_connections=0,
        rows=[row_of(entrant) for entrant in listed],
    )
    bench = Bench(console, setting, OVERHEAD, results)
    with folder_for(args.logs) as folder:
        for number in range(1, results.rounds + 1):
            bench.round(number, [one for one in listed if isinstance(one, Entrant)], folder)
    print_tables(console, results)
    if args.json is not None:
        write(args.json, results)
    if args.markdown is not None:
        args.markdown.write_text(overhead_page(results, busy), encoding="utf-8")
    return 1 if results.complaints() else 0


def direct() -> Entrant:
    """Return the entrant without a proxy: the clients talk to the stand-in."""

    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        yield Proxy("direct", place.worker_url, os.getpid())

    return Entrant("direct", "", "no proxy: the clients talk to the stand-in", start)


def _command(args: argparse.Namespace) -> str:
    """Return the command without this machine's paths."""
    words = ["python -m loadtest overhead"]
    words += ["--quick"] if args.quick else [f"--rounds {args.rounds} --window-s {args.window_s:g}"]
    words += [f"--only '{','.join(args.only)}'"] if args.only else []
    words += ["--peers"] if args.peers else []
    words += ["--compiled-env DIR"] if args.compiled_env is not None else []
    words += ["--force"] if args.force else []
    return " ".join(words)
