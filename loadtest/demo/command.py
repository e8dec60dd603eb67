"""The command line of ``warmroute demo``."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from rich.console import Console

from backends.engine.profile import profile_names
from loadtest.demo import fleet
from loadtest.demo.run import Setting, failures, run_policy, wait_until_ready
from loadtest.report.table import print_rows, write_json
from loadtest.workload.conversations import Shape

BASELINE = "round_robin"
DEFAULT = "marginal_cost"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``demo`` to the command line."""
    parser = commands.add_parser(
        "demo",
        help="four embedded workers and the gateway: prefix routing against round robin",
        description="Start four embedded workers and the gateway as real processes, play multi-turn conversations "
        "about Python source files through round robin and through the default policy, print what prefix "
        "routing saved, and leave nothing behind. Takes about two minutes.",
    )
    parser.add_argument("--policy", default=DEFAULT, help=f"policy to compare with {BASELINE} (default {DEFAULT})")
    parser.add_argument("--workers", type=int, default=4, help="embedded workers (default 4)")
    parser.add_argument(
        "--profile", default="llama-3.1-8b-h100", choices=profile_names(), help="what the workers model"
    )
    parser.add_argument("--time-scale", type=float, default=3.0, help="stretch of the modelled step times (default 3)")
    parser.add_argument("--conversations", type=int, default=60, help="conversations of five turns each (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the workload (default 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON")
    parser.add_argument("--keep", action="store_true", help="leave a fleet up after the runs and print its URLs")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run both policies and print the table; 0 if no request failed."""
    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    shape = Shape(conversations=args.conversations)
    setting = Setting(args.workers, args.profile, args.time_scale, args.seed, shape)
    console.print(
        f"{setting.workers} embedded workers modelling {setting.profile}, step times x {setting.time_scale:g}; "
        f"{shape.conversations} conversations of {shape.turns} turns about Python's own sources"
    )
    try:
        return _compare(console, setting, args)
    except fleet.StartError as error:
        sys.stderr.write(f"warmroute demo: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


def _compare(console: Console, setting: Setting, args: argparse.Namespace) -> int:
    rows, errors = [], []
    for policy in dict.fromkeys((BASELINE, args.policy)):
        row, timings = run_policy(console, setting, policy)
        rows.append(row)
        errors += failures(timings)
    print_rows(console, "prefix routing against round robin (TTFT and TPOT as the client saw them)", rows)
    if args.json:
        write_json(args.json, rows)
    for error in errors[:5]:
        console.print(f"[red]failed:[/red] {error}")
    if args.keep:
        _keep(console, setting, args.policy)
    return 1 if errors else 0


def _keep(console: Console, setting: Setting, policy: str) -> None:
    with fleet.running(setting.workers, policy, setting.worker_flags(), ["--access-log"]) as running:
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
