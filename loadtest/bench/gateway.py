"""``python -m loadtest gateway-bench``: measure what the gateway costs beside other proxies, on one machine.

Every round starts each proxy again, in front of a stand-in worker of its own. It takes each measure on all proxies in
turn, and ratios to nginx within the round, because the machine's speed changes between rounds. A run with a failed
request does not count. Load generator and stand-in share the machine's cores with the proxy.
"""

from __future__ import annotations

import argparse
import datetime
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from loadtest.arguments import above_zero, positive
from loadtest.bench.machine import this_machine
from loadtest.bench.measures.catalogue import NAMES, chosen
from loadtest.bench.measures.subject import Setting
from loadtest.bench.page import page
from loadtest.bench.plot import draw
from loadtest.bench.proxies.entrant import Entrant, Missing
from loadtest.bench.proxies.entrants import entrants
from loadtest.bench.results import Results, Row, write
from loadtest.bench.rounds import Bench
from loadtest.bench.table import print_tables

QUICK = Setting(window_s=0.3, connections=8, memory_connections=20)
QUICK_MEASURES = ("memory", "request-2k", "tokens-64", "first-byte")
FILES = 20_000
MIN_WIDTH = 100


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    setting = Setting()
    parser.add_argument("--rounds", type=positive, default=5, help="rounds over all proxies (default 5)")
    parser.add_argument(
        "--measures",
        type=_measures,
        metavar="NAME,...",
        help=f"measures, of {','.join(NAMES)} (default: all; rate is that of request-2k's loop)",
    )
    parser.add_argument(
        "--window-s", type=above_zero, default=setting.window_s, help="length of one measurement (default %(default)g)"
    )
    parser.add_argument(
        "--connections",
        type=positive,
        default=setting.connections,
        help="clients in the closed loop (default %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="one round of short windows, to see that the bench runs")
    parser.add_argument("--only", type=names, default=(), metavar="PROXY,...", help="proxies to measure (default: all)")
    parser.add_argument(
        "--peers", action="store_true", help="also measure the routers from PyPI; missing ones are installed"
    )
    parser.add_argument(
        "--peers-env",
        type=Path,
        default=Path(".venv-bench"),
        metavar="DIR",
        help="folder for the environments of these routers (default: %(default)s)",
    )
    parser.add_argument(
        "--compiled-env", type=Path, metavar="DIR", help="environment with a compiled Warmroute, to measure it, too"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the figures")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the figures as a page for the docs")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the output of proxies and stand-ins")


def run(args: argparse.Namespace) -> int:
    """Measure, print and write the results; return 1 if any request failed."""
    console = Console()
    console.width = max(console.width, MIN_WIDTH)
    allow_files()
    listed = entrants(args.peers_env if args.peers else None, args.compiled_env, args.only, console.out)
    setting = QUICK if args.quick else Setting(window_s=args.window_s, connections=args.connections)
    results = Results(
        command=_command(args),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        machine=this_machine(),
        rounds=1 if args.quick else args.rounds,
        window_s=setting.window_s,
        connections=setting.connections,
        memory_connections=setting.memory_connections,
        rows=[row_of(entrant) for entrant in listed],
    )
    kinds = chosen(args.measures or (QUICK_MEASURES if args.quick else NAMES))
    bench = Bench(console, setting, kinds, results)
    with folder_for(args.logs) as folder:
        for number in range(1, results.rounds + 1):
            bench.round(number, [one for one in listed if isinstance(one, Entrant)], folder)
    print_tables(console, results)
    if args.json is not None:
        write(args.json, results)
    if args.plot is not None:
        draw(args.plot, results)
    if args.markdown is not None:
        args.markdown.write_text(page(results), encoding="utf-8")
    return 1 if results.complaints() else 0


def _command(args: argparse.Namespace) -> str:
    """Return the command without this machine's paths."""
    words = ["python -m loadtest gateway-bench", *(["--quick"] if args.quick else [f"--rounds {args.rounds}"])]
    words += [f"--window-s {args.window_s:g} --connections {args.connections}"] if not args.quick else []
    words += [f"--measures {','.join(args.measures)}"] if args.measures else []
    words += [f"--only '{','.join(args.only)}'"] if args.only else []
    words += ["--peers"] if args.peers else []
    words += ["--compiled-env DIR"] if args.compiled_env is not None else []
    return " ".join(words)


@contextmanager
def folder_for(kept: Path | None) -> Iterator[Path]:
    """Yield a folder for configurations and logs: a new one under `kept`, or a temporary one."""
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="warmroute-bench-") as folder:
            yield Path(folder)
    else:
        kept.mkdir(parents=True, exist_ok=True)
        yield Path(tempfile.mkdtemp(prefix="run-", dir=kept)).absolute()


def row_of(entrant: Entrant | Missing) -> Row:
    """Return the row of a proxy without figures."""
    if isinstance(entrant, Entrant):
        return Row(entrant.name, entrant.version, entrant.setup)
    return Row(entrant.name, missing=entrant.reason)


def allow_files() -> None:
    """Raise the limit of open files, which all child processes inherit: 2,000 streams are 4,000 sockets in a proxy."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def names(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _measures(text: str) -> tuple[str, ...]:
    wanted = names(text)
    for name in wanted:
        if name not in NAMES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(NAMES)}")
    return wanted
