"""``warmroute demo``: each policy on a fresh fleet, then the table."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from loadtest.demo import plot
from loadtest.demo.command import BASELINE
from loadtest.fleet.embedded import behind_envoy, running
from loadtest.load.conversations import play
from loadtest.load.seen import Seen
from loadtest.report.summary import print_rows, summarise, write_json
from loadtest.workload.conversations import Conversation, Shape, generate
from policies.spec import WRAPPERS

SHOWN_ERRORS = 5


def compare(args: argparse.Namespace) -> int:
    """Run both policies and print the table; return 0 if no request failed."""
    console, shape = Console(), Shape(conversations=args.conversations)
    title = (
        f"{args.workers} embedded workers modelling {args.profile}, step times x {args.time_scale:g}; "
        f"{shape.conversations} conversations of {shape.turns} turns"
    )
    console.print(f"{title} about Python's own sources")
    conversations = generate(shape, args.seed)
    rows = []
    errors: set[str] = set()
    for policy in dict.fromkeys((BASELINE, args.policy)):
        seen = _played(console, args, policy, conversations)
        rows.append(summarise(policy, seen))
        errors |= {each.error for each in seen if each.error is not None}
    print_rows(console, "prefix routing against round robin, as the clients saw it", rows)
    if args.json:
        write_json(args.json, rows)
    if args.plot:
        plot.draw(args.plot, rows, title, repeating(args))
    for error in sorted(errors)[:SHOWN_ERRORS]:
        console.print(f"[red]failed:[/red] {error}")
    return 1 if errors else 0


def _played(
    console: Console, args: argparse.Namespace, policy: str, conversations: Sequence[Conversation]
) -> list[Seen]:
    """Play the conversations through a fresh fleet."""
    columns = (TextColumn("{task.description:>14}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    worker_flags = ["--profile", args.profile, "--time-scale", str(args.time_scale)]
    serve_flags = wrappers(args) if policy == args.policy else ()
    with _fleet(args, policy, worker_flags, serve_flags) as (url, model), Progress(*columns, console=console) as bar:
        task = bar.add_task(policy, total=sum(len(one.turns) for one in conversations))
        return uvloop.run(play(url, model, conversations, lambda seen: bar.advance(task)))


@contextmanager
def _fleet(
    args: argparse.Namespace, policy: str, worker_flags: Sequence[str], serve_flags: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Run a fresh fleet; yield its URL and its model."""
    if args.envoy is not None:
        picked = None if policy == BASELINE else policy
        with behind_envoy(args.workers, picked, args.envoy, worker_flags, serve_flags) as found:
            yield found
        return
    with running(args.workers, policy, worker_flags, serve_flags) as fleet:
        yield fleet.public_url, fleet.wait_until_ready()


def wrappers(args: argparse.Namespace) -> list[str]:
    """Return the flags of ``warmroute serve`` for the wrappers of the compared policy."""
    given = {name: getattr(args, name) for name in WRAPPERS}
    return [f"--{name}" if on else f"--no-{name}" for name, on in given.items() if on is not None]


def repeating(args: argparse.Namespace) -> str:
    """Return the command that draws the chart again, without folders and default values."""
    changed = [(name, getattr(args, name)) for name, default in args.defaults.items() if getattr(args, name) != default]
    flags = [f"--{name.replace('_', '-')} {value}" for name, value in changed if name not in WRAPPERS]
    return " ".join(["warmroute demo", *flags, *wrappers(args), f"--plot {args.plot.name}"])
