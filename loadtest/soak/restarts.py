"""Rolling restarts under load: gateways take over from each other, and workers are drained, replaced and undrained."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process, uninterrupted, warmroute
from loadtest.soak.load_client import LoadClient, Tally

HOST = "127.0.0.1"
DRAIN_WAIT_S = 60
READY_WAIT_S = 30
END_LIMIT_S = 60.0
ASKS = 50
_ADMIN_PORT = r"admin port.*http://"
Say = Callable[[str], None]


class RestartError(RuntimeError):
    """A restart failed, so the run does not count."""


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

    def progress(self) -> str:
        tally = self.tally
        return (
            f"{self.gateway_restarts} gateway and {self.worker_restarts} worker restarts, "
            f"{tally.requests} requests ({tally.streams} streams), {len(tally.failures)} failed"
        )


class Fleet:
    """Workers on fixed ports, the gateway that accepts requests, and its predecessors, which finish their own ones."""

    def __init__(self, workers: int, logs: Path, takeover: Path) -> None:
        self._logs = logs
        self._lock = threading.Lock()
        self._started = 0
        self._alive: set[Process] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self.port = free_ports(2 + 3 * workers)
        try:
            self._start_all(workers, takeover)
        except BaseException:
            self.stop()
            raise

    def _start_all(self, workers: int, takeover: Path) -> None:
        self._workers = [self._start(self._worker_command(number)) for number in range(workers)]
        for worker in self._workers:
            worker.wait_for("worker http")
        flags = [flag for worker in self.ids for flag in ("--worker", f"http://{worker}")]
        ports = ["--host", HOST, "--port", str(self.port), "--admin-port", str(self.port + 1)]
        self._command = ["serve", *ports, "--takeover", str(takeover), *flags]
        self._gateway = self._start(self._command)
        self._gateway.wait_for(_ADMIN_PORT)

    @property
    def ids(self) -> list[str]:
        return [f"{HOST}:{self._worker_port(number)}" for number, _ in enumerate(self._workers)]

    def _worker_port(self, number: int) -> int:
        return self.port + 2 + 3 * number

    def _worker_command(self, number: int) -> list[str]:
        port = self._worker_port(number)
        events = ["--kv-events-port", str(port + 1), "--kv-events-replay-port", str(port + 2)]
        return ["worker", "--port", str(port), *events, "--seed", str(number)]

    def _start(self, arguments: Sequence[str]) -> Process:
        with self._lock, uninterrupted():
            self._started += 1
            name = f"{arguments[0]}-{self._started}"
            child = Process(warmroute(*arguments), name, log=self._logs / f"{name}.log")
            self._alive.add(child)
        return child

    def _ended(self, child: Process) -> None:
        """Wait for the end of a process that should end with 0."""
        code = child.wait(END_LIMIT_S)
        if code != 0:
            raise RestartError(f"{child.name} ended with {code}:\n{child.tail()}")
        with self._lock:
            self._alive.discard(child)

    async def replace_worker(self, number: int) -> None:
        """Drain a worker, wait, send SIGTERM, start a new one and undrain it."""
        worker_id = self.ids[number]
        await self.ask(f"/admin/v1/workers/{worker_id}/drain?wait_s={DRAIN_WAIT_S}")
        self._workers[number].terminate()
        await asyncio.to_thread(self._ended, self._workers[number])
        fresh = self._workers[number] = await asyncio.to_thread(self._start, self._worker_command(number))
        await asyncio.to_thread(fresh.wait_for, "worker http")
        await self.undrain(worker_id)

    async def undrain(self, worker_id: str) -> None:
        await self.ask(f"/admin/v1/workers/{worker_id}/undrain?wait_s={READY_WAIT_S}")

    async def replace_gateway(self) -> None:
        """Start a successor and wait until it has taken over. The old gateway ends later by itself."""
        old, fresh = self._gateway, await asyncio.to_thread(self._start, self._command)
        await asyncio.to_thread(fresh.wait_for, _ADMIN_PORT)
        self._gateway = fresh
        self._ending.add(asyncio.create_task(asyncio.to_thread(self._ended, old)))
        for ended in [each for each in self._ending if each.done()]:
            self._ending.discard(ended)
            ended.result()

    async def end_gateway(self) -> None:
        """Send SIGTERM to the last gateway and check that all gateways ended with 0."""
        self._gateway.terminate()
        await asyncio.gather(*self._ending, asyncio.to_thread(self._ended, self._gateway))

    def stop(self) -> None:
        for child in list(self._alive):
            child.terminate()
        for child in list(self._alive):
            child.stop()

    async def ask(self, path: str, method: str = "POST") -> httpx.Response:
        """Send a request to the admin port on a new connection, again if another process has taken over.

        Raises:
            RestartError: the status is not 200.
        """
        for _ in range(ASKS):
            base_url = f"http://{HOST}:{self.port + 1}"
            async with httpx.AsyncClient(base_url=base_url, timeout=DRAIN_WAIT_S + 10) as client:
                try:
                    answer = await client.request(method, path)
                except httpx.HTTPError as error:
                    raise RestartError(f"{method} {path}: {type(error).__name__} {error}") from error
            if answer.status_code == 200:
                return answer
            if not re.search("handed_over", answer.text):
                break
        raise RestartError(f"{method} {path}: {answer.status_code} {answer.text}")

    async def in_flight(self) -> int:
        listed = (await self.ask("/admin/v1/workers", "GET")).json()["workers"]
        return sum(worker["in_flight"] for worker in listed)


async def restarts(plan: Plan, say: Say) -> Outcome:
    """Run `plan` to its end.

    Raises:
        RestartError: a restart failed, or a process did not end as it should.
    """
    with tempfile.TemporaryDirectory(prefix="warmroute-restarts-") as folder:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):  # like Ctrl-C, so that no process is left
            loop.add_signal_handler(number, task.cancel)
        fleet = Fleet(plan.workers, plan.logs or Path(folder), Path(folder) / "takeover.sock")
        try:
            return await _under_load(plan, fleet, say)
        finally:
            fleet.stop()
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)


async def _under_load(plan: Plan, fleet: Fleet, say: Say) -> Outcome:
    loop = asyncio.get_running_loop()
    outcome, over = Outcome(Tally()), asyncio.Event()
    for worker_id in fleet.ids:
        await fleet.undrain(worker_id)  # answers once the worker is ready
    began_s = loop.time()
    rng = random.Random(plan.seed)
    clients = [
        LoadClient(HOST, fleet.port, outcome.tally, random.Random(rng.random()), say, keeps=number % 2 == 0)
        for number in range(plan.clients)
    ]
    load = [asyncio.create_task(client.run(over)) for client in clients]
    try:
        await asyncio.gather(_gateways(plan, fleet, outcome, say), _workers(plan, fleet, outcome))
    finally:
        over.set()
        await asyncio.gather(*load)
    outcome.seconds = loop.time() - began_s
    outcome.left = await fleet.in_flight()
    await fleet.end_gateway()
    return outcome


async def _gateways(plan: Plan, fleet: Fleet, outcome: Outcome, say: Say) -> None:
    for number in range(1, plan.gateway_restarts + 1):
        await fleet.replace_gateway()
        outcome.gateway_restarts = number
        if number % 25 == 0 or number == plan.gateway_restarts:
            say(outcome.progress())


async def _workers(plan: Plan, fleet: Fleet, outcome: Outcome) -> None:
    for number in range(plan.worker_restarts):
        await fleet.replace_worker(number % plan.workers)
        outcome.worker_restarts = number + 1
