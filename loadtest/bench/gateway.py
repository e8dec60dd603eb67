"""``python -m loadtest gateway-bench``: measure what the gateway costs beside other proxies, on one machine.

Every round starts each proxy again, in front of a stand-in worker of its own. It takes each measure on all proxies in
turn, and ratios to nginx within the round, because the machine's speed changes between rounds. A run with a failed
request does not count. Load generator and stand-in share the machine's cores with the proxy.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from loadtest.bench.measures.catalogue import NAMES, chosen
from loadtest.bench.measures.subject import Setting
from loadtest.bench.page import page
from loadtest.bench.plot import draw
from loadtest.bench.proxies.entrants import entrants
from loadtest.bench.runs import (
    QUICK,
    add_flags,
    add_flags_of_more_proxies,
    command_line,
    measured,
    names,
    wide_console,
    words_of_more_proxies,
    write_files,
)

QUICK_MEASURES = ("memory", "request-2k", "tokens-64", "first-byte")


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_flags(parser, rounds=5, window_s=Setting().window_s)
    add_flags_of_more_proxies(parser)
    parser.add_argument(
        "--measures",
        type=_measures,
        metavar="NAME,...",
        help=f"measures, of {','.join(NAMES)} (default: all; rate is that of request-2k's loop)",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the figures")


def run(args: argparse.Namespace) -> int:
    """Measure, print and write the results; return 1 if any request failed."""
    console = wide_console()
    listed = entrants(args.peers_env if args.peers else None, args.compiled_env, args.only, console.out)
    kinds = chosen(args.measures or (QUICK_MEASURES if args.quick else NAMES))
    wanted = [f"--measures {','.join(args.measures)}"] if args.measures else []
    command = command_line(args, "gateway-bench", [*wanted, *words_of_more_proxies(args)])
    results = measured(args, console, command, listed, kinds, QUICK)
    write_files(args, results, page)
    if args.plot is not None:
        draw(args.plot, results)
    return 1 if results.complaints() else 0


def _measures(text: str) -> tuple[str, ...]:
    wanted = names(text)
    for name in wanted:
        if name not in NAMES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(NAMES)}")
    return wanted
