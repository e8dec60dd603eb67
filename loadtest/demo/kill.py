"""``warmroute demo --kill``: conversations while each worker is killed once and started again."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop
from rich.console import Console

from loadtest.demo.compare import SHOWN_ERRORS, wrappers
from loadtest.fleet.embedded import URL, Running, running
from loadtest.fleet.process import started, warmroute
from loadtest.load.conversations import play
from loadtest.load.seen import Seen
from loadtest.report.sheet import Sheet, print_sheet
from loadtest.workload.conversations import Conversation, Shape, generate

PAUSE_S = 8.0
"""From the start, or from the moment when all workers are ready again, to the next death. It is longer than an answer
takes, because an answer may move once."""
ANSWER_TOKENS = 150
MIGRATION = "routes: [{name: default, layers: {migration: {limit: 1}}}]\n"
EXACT = {"temperature": 0}
"""An embedded worker's answer then depends on its prompt alone, so that answers can be compared."""


def compare(args: argparse.Namespace) -> int:
    """Play without migration and with it, and print the table; return 0 if migration left no stream broken."""
    console, shape = Console(), Shape(conversations=args.conversations, answer_tokens=ANSWER_TOKENS)
    console.print(
        f"{args.workers} embedded workers modelling {args.profile}, step times x {args.time_scale:g}, each killed once "
        f"(kill -9) and started again; {shape.conversations} conversations of {shape.turns} turns"
    )
    conversations = generate(shape, args.seed)
    with console.status("answers without a death"):
        undisturbed = _undisturbed(args, shape)
    with console.status("deaths without migration"):
        without = _killed(args, conversations, [])
    with TemporaryDirectory() as folder, console.status("deaths with migration"):
        settings = Path(folder) / "gateway.yaml"
        settings.write_text(MIGRATION, encoding="utf-8")
        with_it = _killed(args, conversations, ["--config", str(settings)])
    print_sheet(console, sheet(without, with_it, undisturbed))
    errors = {seen.error for seen in with_it if seen.error is not None}
    for error in sorted(errors)[:SHOWN_ERRORS]:
        console.print(f"[red]failed with migration:[/red] {error}")
    return 1 if errors else 0


def sheet(without: Sequence[Seen], with_it: Sequence[Seen], undisturbed: set[str]) -> Sheet:
    """Return the table; `undisturbed` are the texts of a run without deaths."""
    columns = [_cells(seen, undisturbed) for seen in (without, with_it)]
    names = ("streams", "broken streams", "equal to an undisturbed answer", "longest gap, s")
    rows = tuple(zip(names, *columns, strict=True))
    note = "A conversation ends with its broken stream. The gap is between two pieces of text of a whole answer."
    return Sheet("streams whose workers are killed", ("", "without migration", "with migration"), rows, note)


def _cells(all_: Sequence[Seen], undisturbed: set[str]) -> tuple[str, ...]:
    whole = [seen for seen in all_ if seen.error is None]
    gaps = (later - earlier for seen in whole for earlier, later in pairwise(seen.stamps_s))
    equal = sum(seen.text in undisturbed for seen in whole)
    return f"{len(all_)}", f"{len(all_) - len(whole)}", f"{equal}", f"{max(gaps, default=0.0):.2f}"


def _undisturbed(args: argparse.Namespace, shape: Shape) -> set[str]:
    """Return the answers' texts, from a fleet that takes no time for its steps."""
    at_once = replace(shape, starts_per_s=1e3, pause_s=1e-3)
    with running(args.workers, args.policy, ["--profile", args.profile, "--time-scale", "0"]) as fleet:
        model = fleet.wait_until_ready()
        seen = uvloop.run(play(fleet.public_url, model, generate(at_once, args.seed), fields=EXACT))
    return {one.text for one in seen if one.error is None}


def _killed(args: argparse.Namespace, conversations: Sequence[Conversation], flags: Sequence[str]) -> list[Seen]:
    worker_flags = ["--profile", args.profile, "--time-scale", str(args.time_scale)]
    with running(args.workers, args.policy, worker_flags, [*wrappers(args), *flags]) as fleet, ExitStack() as stack:
        return uvloop.run(_under_deaths(fleet, stack, worker_flags, conversations))


async def _under_deaths(
    fleet: Running, stack: ExitStack, worker_flags: Sequence[str], conversations: Sequence[Conversation]
) -> list[Seen]:
    model = await asyncio.to_thread(fleet.wait_until_ready)
    played = play(fleet.public_url, model, conversations, fields=EXACT)
    seen, _ = await asyncio.gather(played, _kill_each(fleet, stack, worker_flags))
    return seen


async def _kill_each(fleet: Running, stack: ExitStack, worker_flags: Sequence[str]) -> None:
    for seed, (url, worker) in enumerate(zip(fleet.worker_urls, fleet.workers, strict=True)):
        await asyncio.sleep(PAUSE_S)
        worker.kill()
        own = ["--port", url.rsplit(":", 1)[1], "--seed", str(seed), *worker_flags]
        again = started(stack, warmroute("worker", *own), f"worker {seed}, again")
        await asyncio.to_thread(again.wait_for, rf"worker {URL}")
        await asyncio.to_thread(fleet.wait_until_ready)
