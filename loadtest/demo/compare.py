"""``warmroute demo``: each policy on a fresh fleet, then the table."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from rich.console import Console

from loadtest.demo import fleet, plot
from loadtest.demo.run import Setting, failures, run_policy, wait_until_ready
from loadtest.report.table import print_rows, write_json
from loadtest.workload.conversations import Shape
from policies.spec import WRAPPERS


def run(args: argparse.Namespace, baseline: str) -> int:
    """Run both policies and print the table; return 0 if no request failed."""
    console = Console()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    shape = Shape(conversations=args.conversations)
    setting = Setting(args.workers, args.profile, args.time_scale, args.seed, shape)
    console.print(f"{setting.title()} about Python's own sources")
    try:
        return _compare(console, setting, args, baseline)
    except fleet.StartError as error:
        sys.stderr.write(f"warmroute demo: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


def _compare(console: Console, setting: Setting, args: argparse.Namespace, baseline: str) -> int:
    rows, errors = [], []
    for policy in dict.fromkeys((baseline, args.policy)):
        row, timings = run_policy(console, setting, policy, wrappers(args) if policy == args.policy else ())
        rows.append(row)
        errors += failures(timings)
    print_rows(console, "prefix routing against round robin, as the clients saw it", rows)
    if args.json:
        write_json(args.json, rows)
    if args.plot:
        plot.draw(args.plot, rows, setting.title(), repeating(args))
    for error in errors[:5]:
        console.print(f"[red]failed:[/red] {error}")
    if args.keep:
        _keep(console, setting, args.policy, wrappers(args))
    return 1 if errors else 0


def wrappers(args: argparse.Namespace) -> list[str]:
    """Return the flags of ``warmroute serve`` for the wrappers of the compared policy."""
    given = {name: getattr(args, name) for name in WRAPPERS}
    return [f"--{name}" if on else f"--no-{name}" for name, on in given.items() if on is not None]


def repeating(args: argparse.Namespace) -> str:
    """Return the command that draws the chart again, without folders and default values."""
    changed = [(name, getattr(args, name)) for name, default in args.defaults.items() if getattr(args, name) != default]
    flags = [f"--{name.replace('_', '-')} {value}" for name, value in changed if name not in WRAPPERS]
    return " ".join(["warmroute demo", *flags, *wrappers(args), f"--plot {args.plot.name}"])


def _keep(console: Console, setting: Setting, policy: str, serve_flags: Sequence[str]) -> None:
    with fleet.running(setting.workers, policy, setting.worker_flags(), ["--access-log", *serve_flags]) as running:
        model = wait_until_ready(running.admin_url, setting.workers)
        body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}], "max_tokens": 16}}'
        console.print(f"gateway  {running.public_url}\nadmin    {running.admin_url}/admin/v1/workers")
        for url in running.worker_urls:
            console.print(f"worker   {url}")
        console.print("try it:", highlight=False)
        line = f"curl {running.public_url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"
        console.print(line, highlight=False, soft_wrap=True)
        console.print("Ctrl-C stops everything.")
        try:
            signal.pause()
        except KeyboardInterrupt:
            console.print("stopping")
