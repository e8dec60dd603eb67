"""``python -m loadtest admission``: put queues beside each other when the fleet is full, in virtual time.

Each contest plays one load through each queue: the product's own admission, none, and the queue rules of llm-d, Dynamo
and smg. The command prints the mean over seeds of each figure with its 95 % interval, and whether it meets its bar.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.console import Console

from loadtest.admission.bars import CONTESTS, Bar
from loadtest.admission.contest import QUEUES
from loadtest.arguments import positive
from loadtest.report.confidence import interval


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--contest", choices=list(CONTESTS), nargs="+", default=list(CONTESTS), help="which loads")
    parser.add_argument("--queue", choices=list(QUEUES), nargs="+", default=["warmroute"], help="which queues")
    parser.add_argument("--seeds", type=positive, default=10, metavar="K", help="number of seeds (default 10)")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, metavar="N", help="number of processes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of every seed to FILE")


def run(args: argparse.Namespace) -> int:
    console = Console(width=160, highlight=False)
    runs = [(name, queue, seed) for name in args.contest for queue in args.queue for seed in range(args.seeds)]
    with ProcessPoolExecutor(args.jobs) as pool:
        played = dict(zip(runs, pool.map(_figures, *zip(*runs, strict=True)), strict=True))
    for name in args.contest:
        for queue in args.queue:
            _print(console, f"{name:<13} {queue:<10}", [played[name, queue, seed] for seed in range(args.seeds)])
    if args.json is not None:
        rows = [
            {"contest": name, "queue": queue, "seed": seed, "figures": {bar.text: value for bar, value in figures}}
            for (name, queue, seed), figures in played.items()
        ]
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def _figures(name: str, queue: str, seed: int) -> list[tuple[Bar, float]]:
    return list(CONTESTS[name](queue, seed))


def _print(console: Console, head: str, seeds: list[list[tuple[Bar, float]]]) -> None:
    for bar in dict.fromkeys(bar for figures in seeds for bar, _ in figures):
        found = interval([value for figures in seeds for one, value in figures if one == bar])
        half = "" if found.half != found.half else f" +- {found.half:.3f}"
        console.print(f"{head} {bar.text:<58} {found.mean:.3f}{half}{_judged(bar, found.mean)}")


def _judged(bar: Bar, value: float) -> str:
    wanted = [f"{sign} {limit:g}" for sign, limit in (("<=", bar.most), (">=", bar.least)) if limit is not None]
    return f" ({wanted[0]}: {'met' if bar.met(value) else 'missed'})" if wanted else ""
