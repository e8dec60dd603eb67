"""One policy's run: a fresh fleet, the same conversations, a progress bar, and one row of numbers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from loadtest.demo import fleet
from loadtest.drive.conversations import play
from loadtest.drive.seen import Seen
from loadtest.report.summary import Row, summarise
from loadtest.workload.conversations import Shape, generate

READY_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a demo run. `time_scale` stretches the modelled GPU's step times."""

    workers: int = 4
    profile: str = "llama-3.1-8b-h100"
    time_scale: float = 3.0
    seed: int = 0
    shape: Shape = field(default_factory=Shape)

    def title(self) -> str:
        """Return the fleet and the workload in one line."""
        return (
            f"{self.workers} embedded workers modelling {self.profile}, step times x {self.time_scale:g}; "
            f"{self.shape.conversations} conversations of {self.shape.turns} turns"
        )

    def worker_flags(self) -> list[str]:
        return ["--profile", self.profile, "--time-scale", str(self.time_scale)]


def wait_until_ready(admin_url: str, workers: int, limit_s: float = READY_LIMIT_S) -> str:
    """Wait until every worker is ready and its cache view known; return the model that they serve.

    Raises:
        fleet.StartError: `limit_s` has passed.
    """
    end_s = time.monotonic() + limit_s
    listed: list[dict[str, object]] = []
    while time.monotonic() < end_s:
        listed = httpx.get(f"{admin_url}/admin/v1/workers").json()["workers"]
        if len(listed) == workers and all(worker["state"] == "ready" for worker in listed):
            return served_model(listed[0])
        time.sleep(0.1)
    states = ", ".join(f"{worker['id']} is {worker['state']} ({worker['reason']})" for worker in listed)
    raise fleet.StartError(f"not every worker was ready within {limit_s:.0f} s: {states}")


def served_model(worker: dict[str, object]) -> str:
    """Return the first model of a worker, as the admin API shows it."""
    models = worker["models"]
    assert isinstance(models, list)
    return str(models[0]["id"])


def run_policy(
    console: Console, setting: Setting, policy: str, serve_flags: Sequence[str] = ()
) -> tuple[Row, list[Seen]]:
    conversations = generate(setting.shape, setting.seed)
    total = sum(len(conversation.turns) for conversation in conversations)
    with (
        fleet.running(setting.workers, policy, setting.worker_flags(), serve_flags) as running,
        bar(console) as progress,
    ):
        model = wait_until_ready(running.admin_url, setting.workers)
        task = progress.add_task(policy, total=total)
        timings = uvloop.run(play(running.public_url, model, conversations, lambda timing: progress.advance(task)))
    return summarise(policy, timings), timings


def bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description:>14}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)


def failures(timings: Sequence[Seen]) -> list[str]:
    return sorted({timing.error for timing in timings if timing.error is not None})
