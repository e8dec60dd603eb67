"""``python -m loadtest bench``: measure what this tree's gateway costs, beside the programs named by ``--against``.

Every round starts each program in front of its own stand-in worker, and takes each measure of all programs in turn,
because the machine's speed changes between rounds. The page has the gateway's ratio to each of the others, with a
bootstrap interval over rounds. A figure with a failed request does not count. Load generator and stand-in share the
machine's cores. The page goes to the standard output, the progress to the standard error.
"""

from __future__ import annotations

import argparse
import datetime
import resource
import tempfile
from pathlib import Path

import msgspec
import psutil
from rich.console import Console

from loadtest.arguments import above_zero, positive, writable
from loadtest.bench.measures.catalogue import NAMES, chosen
from loadtest.bench.measures.sample import Setting
from loadtest.bench.page import page
from loadtest.bench.proxies import against
from loadtest.bench.results import Results, this_machine
from loadtest.bench.rounds import Bench

QUICK = Setting(window_s=0.3, connections=8, memory_connections=20)
FILES = 20_000
LOOK_S = 1.0
"""Time for which the CPU use of other programs is observed."""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "--measure",
        type=_measures,
        default=("requests", "tokens", "first-byte", "memory"),
        metavar="NAME,...",
        help=f"of {', '.join(NAMES)}, or one of their parts, as in tokens-64 (default: the first four)",
    )
    parser.add_argument("--against", type=_names, default=(), metavar="NAME,...", help=against.HELP)
    parser.add_argument(
        "--everything-on",
        action="store_true",
        help="run Warmroute with API keys, cache isolation, limits, routes and a decision log",
    )
    parser.add_argument("--rounds", type=positive, default=5, help="(default %(default)s)")
    parser.add_argument("--window-s", type=above_zero, default=Setting().window_s, help="(default %(default)g)")
    parser.add_argument("--workers", type=positive, default=1, help="workers of each gateway (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one round of short windows, to see that the bench runs")
    parser.add_argument(
        "--peers-env",
        type=Path,
        default=Path(".venv-peers"),
        metavar="DIR",
        help="environment with the programs from PyPI, made by `make peers-env` (default: %(default)s)",
    )
    parser.add_argument("--json", type=writable, metavar="FILE", help="write every round's figures")


def run(args: argparse.Namespace) -> int:
    """Measure, print and write the results; return 1 if a request failed, 2 if a name is unknown."""
    console = Console(stderr=True)
    try:
        entrants, rows = against.entrants(args.against, args.everything_on, args.peers_env)
    except against.UnknownName as error:
        console.print(f"--against: {error}", style="red", highlight=False, markup=False)
        return 2
    _allow_files()
    setting = QUICK if args.quick else Setting(window_s=args.window_s)
    results = Results(
        command=_command_line(args),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        machine=this_machine(),
        rounds=1 if args.quick else args.rounds,
        window_s=setting.window_s,
        connections=setting.connections,
        memory_connections=setting.memory_connections,
        busy_share=psutil.cpu_percent(interval=LOOK_S) / 100,
        everything_on=args.everything_on,
        rows=rows,
    )
    bench = Bench(console, setting, chosen(args.measure), results, args.workers)
    with tempfile.TemporaryDirectory(prefix="warmroute-bench-") as folder:
        for number in range(1, results.rounds + 1):
            bench.round(number, entrants, Path(folder))
    print(page(results))
    if args.json is not None:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
    return 1 if results.complaints() else 0


def _command_line(args: argparse.Namespace) -> str:
    """Return the command without this machine's paths."""
    words = ["python -m loadtest bench", f"--measure {','.join(args.measure)}"]
    words += [f"--against {','.join(map(against.without_path, args.against))}"] if args.against else []
    words += ["--everything-on"] if args.everything_on else []
    words += [f"--workers {args.workers}"] if args.workers > 1 else []
    return " ".join([*words, "--quick" if args.quick else f"--rounds {args.rounds} --window-s {args.window_s:g}"])


def _allow_files() -> None:
    """Raise the limit of open files, which all child processes inherit: 2,000 streams are 4,000 sockets in a proxy."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _measures(text: str) -> tuple[str, ...]:
    wanted = _names(text)
    for name in wanted:
        if not chosen((name,)):
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(NAMES)}")
    return wanted
