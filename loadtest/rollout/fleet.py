"""The gateway and its workers as processes, and how each is replaced while requests run."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Sequence
from pathlib import Path

import httpx

from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process, StartError, uninterrupted, warmroute

DRAIN_WAIT_S = 60
READY_WAIT_S = 30
END_LIMIT_S = 60.0
ASKS = 50
_URL = r"(http://[^\s\"',]+)"


class RolloutError(RuntimeError):
    """A restart failed, so the run does not count."""


class Children:
    """All processes of the run, which are stopped at its end."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._lock = threading.Lock()
        self._started = 0
        self._alive: set[Process] = set()

    def start(self, arguments: Sequence[str]) -> Process:
        """Start one ``warmroute`` command."""
        with self._lock, uninterrupted():
            self._started += 1
            name = f"{arguments[0]}-{self._started}"
            child = Process(warmroute(*arguments), name, log=self._logs / f"{name}.log")
            self._alive.add(child)
        return child

    def ended(self, child: Process) -> None:
        """Wait for the end of a process that should end with 0, and forget it."""
        code = child.wait(END_LIMIT_S)
        if code != 0:
            raise RolloutError(f"{child.name} ended with {code}:\n{child.tail()}")
        with self._lock:
            self._alive.discard(child)

    def stop(self) -> None:
        for child in list(self._alive):
            child.terminate()
        for child in list(self._alive):
            child.stop()


class Workers:
    """Embedded workers on fixed ports."""

    def __init__(self, children: Children, count: int) -> None:
        self._children = children
        self._first = free_ports(3 * count)
        self._running: list[Process] = [self._start(number) for number in range(count)]
        for worker in self._running:
            worker.wait_for("worker http")

    @property
    def ids(self) -> list[str]:
        return [f"127.0.0.1:{self._first + 3 * number}" for number in range(len(self._running))]

    def _start(self, number: int) -> Process:
        port = self._first + 3 * number
        events = ["--kv-events-port", str(port + 1), "--kv-events-replay-port", str(port + 2)]
        return self._children.start(["worker", "--port", str(port), *events, "--seed", str(number)])

    async def replace(self, number: int, admin: Admin) -> None:
        """Drain a worker, wait, send SIGTERM, start a new one and undrain it."""
        worker_id = self.ids[number]
        await admin.ask(f"/admin/v1/workers/{worker_id}/drain?wait_s={DRAIN_WAIT_S}")
        self._running[number].terminate()
        await asyncio.to_thread(self._children.ended, self._running[number])
        fresh = self._running[number] = await asyncio.to_thread(self._start, number)
        await asyncio.to_thread(fresh.wait_for, "worker http")
        await admin.ask(f"/admin/v1/workers/{worker_id}/undrain?wait_s={READY_WAIT_S}")


class Gateways:
    """The gateway that accepts requests, and its predecessors, which finish their own requests."""

    def __init__(self, children: Children, workers: Sequence[str], takeover: Path) -> None:
        self._children = children
        port = free_ports(2)
        self.host, self.port, self.admin_port = "127.0.0.1", port, port + 1
        flags = [flag for worker in workers for flag in ("--worker", f"http://{worker}")]
        places = ["--host", self.host, "--port", str(port), "--admin-port", str(port + 1), "--takeover", str(takeover)]
        self._arguments = ["serve", *places, *flags]
        self._running = children.start(self._arguments)
        self._running.wait_for(rf"admin port.*{_URL}")
        self._ending: set[asyncio.Task[None]] = set()

    async def replace(self) -> None:
        """Start a successor and wait until it has taken over. The old gateway ends later by itself."""
        old, fresh = self._running, await asyncio.to_thread(self._children.start, self._arguments)
        await asyncio.to_thread(fresh.wait_for, rf"admin port.*{_URL}")
        self._running = fresh
        task = asyncio.create_task(asyncio.to_thread(self._children.ended, old))
        self._ending.add(task)
        for ended in [each for each in self._ending if each.done()]:
            self._ending.discard(ended)
            ended.result()

    async def stop(self) -> None:
        """Send SIGTERM to the last gateway and check that all gateways ended with 0."""
        self._running.terminate()
        await asyncio.gather(*self._ending, asyncio.to_thread(self._children.ended, self._running))


class Admin:
    """The admin port. Each request uses a new connection, and is repeated if another process has taken over."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url

    async def ask(self, path: str, method: str = "POST") -> httpx.Response:
        """Send a request and return its answer.

        Raises:
            RolloutError: the status is not 200.
        """
        for _ in range(ASKS):
            async with httpx.AsyncClient(base_url=self._base_url, timeout=DRAIN_WAIT_S + 10) as client:
                try:
                    answer = await client.request(method, path)
                except httpx.HTTPError as error:
                    raise RolloutError(f"{method} {path}: {type(error).__name__} {error}") from error
            if answer.status_code == 200:
                return answer
            if not re.search("handed_over", answer.text):
                break
        raise RolloutError(f"{method} {path}: {answer.status_code} {answer.text}")

    async def in_flight(self) -> int:
        """Return the number of requests in progress at all workers."""
        listed = (await self.ask("/admin/v1/workers", "GET")).json()["workers"]
        return sum(worker["in_flight"] for worker in listed)


__all__ = ["Admin", "Children", "Gateways", "RolloutError", "StartError", "Workers"]
