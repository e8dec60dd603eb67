"""``warmroute demo``: each policy on a fresh fleet, then the table."""

from __future__ import annotations

import argparse

from rich.console import Console

from loadtest.demo import plot
from loadtest.demo.command import BASELINE
from loadtest.demo.run import Setting, played, show_errors, wrappers
from loadtest.drive.seen import Seen
from loadtest.report.summary import summarise
from loadtest.report.table import print_rows, write_json
from loadtest.workload.conversations import Shape, generate
from policies.spec import WRAPPERS


def compare(args: argparse.Namespace) -> int:
    """Run both policies and print the table; return 0 if no request failed."""
    console = Console()
    setting = Setting.of(args, Shape(conversations=args.conversations))
    console.print(f"{setting.title()} about Python's own sources")
    conversations = generate(setting.shape, setting.seed)
    rows = []
    everything: list[Seen] = []
    for policy in dict.fromkeys((BASELINE, args.policy)):
        flags = wrappers(args) if policy == args.policy else ()
        (seen,), _ = played(console, setting, policy, policy, [conversations], serve_flags=flags)
        rows.append(summarise(policy, seen))
        everything += seen
    print_rows(console, "prefix routing against round robin, as the clients saw it", rows)
    if args.json:
        write_json(args.json, rows)
    if args.plot:
        plot.draw(args.plot, rows, setting.title(), repeating(args))
    return show_errors(console, everything)


def repeating(args: argparse.Namespace) -> str:
    """Return the command that draws the chart again, without folders and default values."""
    changed = [(name, getattr(args, name)) for name, default in args.defaults.items() if getattr(args, name) != default]
    flags = [f"--{name.replace('_', '-')} {value}" for name, value in changed if name not in WRAPPERS]
    return " ".join(["warmroute demo", *flags, *wrappers(args), f"--plot {args.plot.name}"])
