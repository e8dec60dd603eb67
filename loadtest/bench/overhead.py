"""``python -m loadtest overhead``: measure what a proxy adds, by a protocol that outsiders know.

The rules are those of public gateway benches: a mock upstream that streams a token every 20 ms, the time that the
proxy adds at one connection as paired differences, the request rate within a bound of the tail, the streams until the
first stall, and memory before, under and after load. The row `direct` has no proxy: it shows the limit of clients and
upstream, which share the machine. On a machine that is busy with something else the bench refuses to run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from loadtest.bench.measures.catalogue import OVERHEAD
from loadtest.bench.measures.subject import Setting
from loadtest.bench.page import overhead_page
from loadtest.bench.proxies.entrant import Entrant, Place, Proxy
from loadtest.bench.proxies.entrants import entrants
from loadtest.bench.runs import (
    add_flags,
    add_flags_of_more_proxies,
    busy_share,
    command_line,
    measured,
    wide_console,
    words_of_more_proxies,
    write_files,
)

QUICK = Setting(window_s=0.3, connections=8)
BUSY_SHARE = 0.1
"""CPU use of other programs, over all cores, from which the machine counts as busy."""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_flags(parser, rounds=3, window_s=3.0)
    add_flags_of_more_proxies(parser)
    parser.add_argument("--force", action="store_true", help="measure on a busy machine, too")


def run(args: argparse.Namespace) -> int:
    """Measure, print and write the results; return 1 if any request failed, 2 on a busy machine."""
    busy = busy_share()
    if busy > BUSY_SHARE and not args.force:
        print(
            f"other programs use {busy:.0%} of the CPUs, more than {BUSY_SHARE:.0%}, so that no figure would count: "
            "stop them, or give --force",
            file=sys.stderr,
        )
        return 2
    console = wide_console()
    listed = entrants(args.peers_env if args.peers else None, args.compiled_env, args.only, console.out)
    listed = [direct(), *listed] if not args.only or "direct" in args.only else listed
    forced = ["--force"] if args.force else []
    command = command_line(args, "overhead", [*words_of_more_proxies(args), *forced])
    results = measured(args, console, command, listed, OVERHEAD, QUICK)
    results.busy_share = busy
    write_files(args, results, overhead_page)
    return 1 if results.complaints() else 0


def direct() -> Entrant:
    """Return the entrant without a proxy: the clients talk to the stand-in."""

    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        yield Proxy("direct", place.worker_url, os.getpid())

    return Entrant("direct", "", "no proxy: the clients talk to the stand-in", start)
