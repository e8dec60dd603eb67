"""Conversations through a fresh fleet, with a progress bar: what all parts of the demo share."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import httpx
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from loadtest.drive.conversations import play
from loadtest.drive.seen import Seen
from loadtest.fleet.embedded import running
from loadtest.workload.conversations import Conversation, Shape
from policies.spec import WRAPPERS

SHOWN_ERRORS = 5


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a demo run. `time_scale` stretches the modelled GPU's step times."""

    workers: int
    profile: str
    time_scale: float
    seed: int
    shape: Shape

    @classmethod
    def of(cls, args: argparse.Namespace, shape: Shape) -> Setting:
        return cls(args.workers, args.profile, args.time_scale, args.seed, shape)

    def title(self) -> str:
        return (
            f"{self.workers} embedded workers modelling {self.profile}, step times x {self.time_scale:g}; "
            f"{self.shape.conversations} conversations of {self.shape.turns} turns"
        )

    def worker_flags(self) -> list[str]:
        return ["--profile", self.profile, "--time-scale", str(self.time_scale)]


def wrappers(args: argparse.Namespace) -> list[str]:
    """Return the flags of ``warmroute serve`` for the wrappers of the compared policy."""
    given = {name: getattr(args, name) for name in WRAPPERS}
    return [f"--{name}" if on else f"--no-{name}" for name, on in given.items() if on is not None]


def played(
    console: Console,
    setting: Setting,
    title: str,
    policy: str,
    parts: Sequence[Sequence[Conversation]],
    worker_flags: Sequence[str] = (),
    serve_flags: Sequence[str] = (),
    roles: Sequence[str] = (),
) -> tuple[list[list[Seen]], int]:
    """Play all parts at once through a fresh fleet; return the requests of each, and the number of KV handovers."""
    columns = (TextColumn("{task.description:>14}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    flags = [*setting.worker_flags(), *worker_flags]
    with (
        running(setting.workers, policy, flags, serve_flags, roles) as fleet,
        Progress(*columns, console=console) as bar,
    ):
        model = fleet.wait_until_ready()
        task = bar.add_task(title, total=sum(len(one.turns) for part in parts for one in part))

        async def all_parts() -> list[list[Seen]]:
            runs = [play(fleet.public_url, model, part, lambda seen: bar.advance(task)) for part in parts]
            return await asyncio.gather(*runs)

        return uvloop.run(all_parts()), _handed_over(fleet.admin_url)


def _handed_over(admin_url: str) -> int:
    lines = httpx.get(f"{admin_url}/metrics").text.splitlines()
    counted = [line for line in lines if line.startswith('warmroute_handovers_total{outcome="handed_over"}')]
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in counted)


def show_errors(console: Console, seen: Iterable[Seen]) -> int:
    """Print some errors of the requests; return the exit code."""
    errors = sorted({each.error for each in seen if each.error is not None})
    for error in errors[:SHOWN_ERRORS]:
        console.print(f"[red]failed:[/red] {error}")
    return 1 if errors else 0
