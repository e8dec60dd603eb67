"""One run: a fleet, clients, and two loops that replace its parts meanwhile."""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadtest.rollout.clients import LoadClient, Tally
from loadtest.rollout.fleet import Admin, Children, Gateways, Workers


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a run. `logs` is the folder for the processes' output; None discards it."""

    gateway_restarts: int
    worker_restarts: int
    workers: int = 3
    clients: int = 12
    seed: int = 0
    logs: Path | None = None


@dataclass(slots=True)
class Outcome:
    """Result of a run. `left` is the load that the last gateway still had on its workers after the clients' end."""

    tally: Tally
    gateway_restarts: int = 0
    worker_restarts: int = 0
    seconds: float = 0.0
    left: int = 0


Say = Callable[[str], None]


async def rollout(plan: Plan, say: Say) -> Outcome:
    """Run `plan` to its end.

    Raises:
        RolloutError: a restart failed, or a process did not end as it should.
    """
    with tempfile.TemporaryDirectory(prefix="warmroute-rollout-") as folder:
        children = Children(plan.logs or Path(folder))
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):  # like Ctrl-C, so that no process is left
            loop.add_signal_handler(number, task.cancel)
        try:
            workers = await asyncio.to_thread(Workers, children, plan.workers)
            gateways = await asyncio.to_thread(Gateways, children, workers.ids, Path(folder) / "takeover.sock")
            return await _under_load(plan, workers, gateways, say)
        finally:
            children.stop()
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)


async def _under_load(plan: Plan, workers: Workers, gateways: Gateways, say: Say) -> Outcome:
    loop = asyncio.get_running_loop()
    outcome, over = Outcome(Tally()), asyncio.Event()
    admin = Admin(f"http://{gateways.host}:{gateways.admin_port}")
    for worker_id in workers.ids:
        await admin.ask(f"/admin/v1/workers/{worker_id}/undrain?wait_s=30")  # answers once the worker is ready
    began_s = loop.time()
    load = [asyncio.create_task(client.run(over)) for client in _clients(plan, gateways, outcome.tally, say)]
    try:
        await asyncio.gather(_gateways(plan, gateways, outcome, say), _workers(plan, workers, admin, outcome))
    finally:
        over.set()
        await asyncio.gather(*load)
    outcome.seconds = loop.time() - began_s
    outcome.left = await admin.in_flight()
    await gateways.stop()
    return outcome


def _clients(plan: Plan, gateways: Gateways, tally: Tally, say: Say) -> list[LoadClient]:
    rng = random.Random(plan.seed)
    seeds = [rng.random() for _ in range(plan.clients)]
    return [
        LoadClient(gateways.host, gateways.port, tally, random.Random(seed), say, keeps=number % 2 == 0)
        for number, seed in enumerate(seeds)
    ]


async def _gateways(plan: Plan, gateways: Gateways, outcome: Outcome, say: Say) -> None:
    for number in range(plan.gateway_restarts):
        await gateways.replace()
        outcome.gateway_restarts = number + 1
        if (number + 1) % 25 == 0 or number + 1 == plan.gateway_restarts:
            say(progress(outcome))


async def _workers(plan: Plan, workers: Workers, admin: Admin, outcome: Outcome) -> None:
    for number in range(plan.worker_restarts):
        await workers.replace(number % plan.workers, admin)
        outcome.worker_restarts = number + 1


def progress(outcome: Outcome) -> str:
    tally = outcome.tally
    return (
        f"{outcome.gateway_restarts} gateway and {outcome.worker_restarts} worker restarts, "
        f"{tally.requests} requests ({tally.streams} streams), {len(tally.failures)} failed"
    )
