"""What the benches of proxies have in common: their flags, and a run over all rounds."""

from __future__ import annotations

import argparse
import datetime
import resource
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from rich.console import Console

from loadtest.arguments import above_zero, positive
from loadtest.bench.machine import this_machine
from loadtest.bench.measures.catalogue import Kind
from loadtest.bench.measures.subject import Setting
from loadtest.bench.proxies.entrant import Entrant, Missing
from loadtest.bench.results import Results, Row, write
from loadtest.bench.rounds import Bench
from loadtest.bench.table import print_tables

QUICK = Setting(window_s=0.3, connections=8, memory_connections=20)
FILES = 20_000
MIN_WIDTH = 100
LOOK_S = 1.0
"""Time for which the CPU use of other programs is observed."""


def add_flags(parser: argparse.ArgumentParser, rounds: int, window_s: float) -> None:
    """Add the flags of every bench, with these defaults."""
    parser.add_argument("--rounds", type=positive, default=rounds, help="rounds over all proxies (default %(default)s)")
    parser.add_argument(
        "--window-s", type=above_zero, default=window_s, help="length of one measurement (default %(default)g)"
    )
    parser.add_argument(
        "--connections",
        type=positive,
        default=Setting().connections,
        help="clients in the closed loop (default %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="one round of short windows, to see that the bench runs")
    parser.add_argument("--only", type=names, default=(), metavar="PROXY,...", help="proxies to measure (default: all)")
    parser.add_argument(
        "--peers-env",
        type=Path,
        default=Path(".venv-bench"),
        metavar="DIR",
        help="folder for the environments of the routers from PyPI (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the figures as a page for the docs")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the output of proxies and stand-ins")


def add_flags_of_more_proxies(parser: argparse.ArgumentParser) -> None:
    """Add the flags for proxies that are not measured without them."""
    parser.add_argument(
        "--peers", action="store_true", help="also measure the routers from PyPI; missing ones are installed"
    )
    parser.add_argument(
        "--compiled-env", type=Path, metavar="DIR", help="environment with a compiled Warmroute, to measure it, too"
    )


def command_line(args: argparse.Namespace, name: str, further: Sequence[str] = ()) -> str:
    """Return the command without this machine's paths."""
    words = [f"python -m loadtest {name}"]
    if args.quick:
        words.append("--quick")
    else:
        words.append(f"--rounds {args.rounds} --window-s {args.window_s:g} --connections {args.connections}")
    words += [f"--only '{','.join(args.only)}'"] if args.only else []
    return " ".join([*words, *further])


def words_of_more_proxies(args: argparse.Namespace) -> list[str]:
    """Return the words of `add_flags_of_more_proxies` for `command_line`."""
    return [
        *(["--peers"] if args.peers else []),
        *(["--compiled-env DIR"] if args.compiled_env is not None else []),
    ]


def busy_share() -> float:
    """Return the CPU use of other programs over all cores, 0 to 1."""
    return psutil.cpu_percent(interval=LOOK_S) / 100


def wide_console() -> Console:
    console = Console()
    console.width = max(console.width, MIN_WIDTH)
    return console


def measured(
    args: argparse.Namespace,
    console: Console,
    command: str,
    listed: Sequence[Entrant | Missing],
    kinds: Sequence[Kind],
    quick: Setting,
    workers: int = 1,
) -> Results:
    """Measure all rounds and print the tables. `workers` stand behind each proxy."""
    _allow_files()
    setting = quick if args.quick else Setting(window_s=args.window_s, connections=args.connections)
    results = Results(
        command=command,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        machine=this_machine(),
        rounds=1 if args.quick else args.rounds,
        window_s=setting.window_s,
        connections=setting.connections,
        memory_connections=setting.memory_connections,
        rows=[_row_of(entrant) for entrant in listed],
    )
    bench = Bench(console, setting, kinds, results, workers)
    with _folder_for(args.logs) as folder:
        for number in range(1, results.rounds + 1):
            bench.round(number, [one for one in listed if isinstance(one, Entrant)], folder)
    print_tables(console, results)
    return results


def write_files(args: argparse.Namespace, results: Results, page: Callable[[Results], str]) -> None:
    """Write the files that `add_flags` offers."""
    if args.json is not None:
        write(args.json, results)
    if args.markdown is not None:
        args.markdown.write_text(page(results), encoding="utf-8")


@contextmanager
def _folder_for(kept: Path | None) -> Iterator[Path]:
    """Yield a folder for configurations and logs: a new one under `kept`, or a temporary one."""
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="warmroute-bench-") as folder:
            yield Path(folder)
    else:
        kept.mkdir(parents=True, exist_ok=True)
        yield Path(tempfile.mkdtemp(prefix="run-", dir=kept)).absolute()


def _row_of(entrant: Entrant | Missing) -> Row:
    """Return the row of a proxy without figures."""
    if isinstance(entrant, Entrant):
        return Row(entrant.name, entrant.version, entrant.setup)
    return Row(entrant.name, missing=entrant.reason)


def _allow_files() -> None:
    """Raise the limit of open files, which all child processes inherit: 2,000 streams are 4,000 sockets in a proxy."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
