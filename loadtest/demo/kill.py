"""``warmroute demo --kill``: conversations while each worker is killed once and started again."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from math import nan
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
from loadtest.report.summary import percentile
from loadtest.workload.conversations import Conversation, Shape, generate

PAUSE_S = 8.0
"""From the start, or from the moment when all workers are ready again, to the next death. It is longer than an answer
takes, because an answer may move once."""
STORM_S = 5.0
"""From a death: the requests that come then wait behind the answers that move."""
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
    errors = set(with_it.broken)
    for error in sorted(errors)[:SHOWN_ERRORS]:
        console.print(f"[red]failed with migration:[/red] {error}")
    return 1 if errors else 0


@dataclass(frozen=True, slots=True)
class Played:
    """The streams of one run, and when its workers were killed, in seconds of `time.monotonic`."""

    seen: Sequence[Seen]
    deaths_s: Sequence[float] = ()

    @property
    def broken(self) -> list[str]:
        return [seen.error for seen in self.seen if seen.error is not None]

    def p99_ttft_s(self, *, in_storm: bool) -> float:
        """Return the p99 of the streams that began within `STORM_S` after a death, or of all others."""
        ttfts_s = [
            seen.ttft_s
            for seen in self.seen
            if seen.ttft_s is not None and in_storm == any(0.0 <= seen.began_s - at < STORM_S for at in self.deaths_s)
        ]
        return percentile(ttfts_s, 0.99) if ttfts_s else nan


def sheet(without: Played, with_it: Played, undisturbed: set[str]) -> Sheet:
    """Return the table; `undisturbed` are the texts of a run without deaths."""
    columns = [_cells(played, undisturbed) for played in (without, with_it)]
    names = (
        "streams",
        "broken streams",
        "equal to an undisturbed answer",
        "longest gap, s",
        f"TTFT p99, s: begun within {STORM_S:g} s after a death",
        "TTFT p99, s: all others",
    )
    rows = tuple(zip(names, *columns, strict=True))
    note = "A conversation ends with its broken stream. The gap is between two pieces of text of a whole answer."
    return Sheet("streams whose workers are killed", ("", "without migration", "with migration"), rows, note)


def _cells(played: Played, undisturbed: set[str]) -> tuple[str, ...]:
    whole = [seen for seen in played.seen if seen.error is None]
    gaps = (later - earlier for seen in whole for earlier, later in pairwise(seen.stamps_s))
    equal = sum(seen.text in undisturbed for seen in whole)
    ttfts_s = (played.p99_ttft_s(in_storm=in_storm) for in_storm in (True, False))
    times = (f"{time_s:.2f}" for time_s in (max(gaps, default=0.0), *ttfts_s))
    return f"{len(played.seen)}", f"{len(played.broken)}", f"{equal}", *times


def _undisturbed(args: argparse.Namespace, shape: Shape) -> set[str]:
    """Return the answers' texts, from a fleet that takes no time for its steps."""
    at_once = replace(shape, starts_per_s=1e3, pause_s=1e-3)
    with running(args.workers, args.policy, ["--profile", args.profile, "--time-scale", "0"]) as fleet:
        model = fleet.wait_until_ready()
        seen = uvloop.run(play(fleet.public_url, model, generate(at_once, args.seed), fields=EXACT))
    return {one.text for one in seen if one.error is None}


def _killed(args: argparse.Namespace, conversations: Sequence[Conversation], flags: Sequence[str]) -> Played:
    worker_flags = ["--profile", args.profile, "--time-scale", str(args.time_scale)]
    with running(args.workers, args.policy, worker_flags, [*wrappers(args), *flags]) as fleet, ExitStack() as stack:
        return uvloop.run(_under_deaths(fleet, stack, worker_flags, conversations))


async def _under_deaths(
    fleet: Running, stack: ExitStack, worker_flags: Sequence[str], conversations: Sequence[Conversation]
) -> Played:
    model = await asyncio.to_thread(fleet.wait_until_ready)
    played = play(fleet.public_url, model, conversations, fields=EXACT)
    seen, deaths_s = await asyncio.gather(played, _kill_each(fleet, stack, worker_flags))
    return Played(seen, deaths_s)


async def _kill_each(fleet: Running, stack: ExitStack, worker_flags: Sequence[str]) -> list[float]:
    deaths_s = []
    for seed, (url, worker) in enumerate(zip(fleet.worker_urls, fleet.workers, strict=True)):
        await asyncio.sleep(PAUSE_S)
        deaths_s.append(time.monotonic())
        worker.kill()
        own = ["--port", url.rsplit(":", 1)[1], "--seed", str(seed), *worker_flags]
        again = started(stack, warmroute("worker", *own), f"worker {seed}, again")
        await asyncio.to_thread(again.wait_for, rf"worker {URL}")
        await asyncio.to_thread(fleet.wait_until_ready)
    return deaths_s
