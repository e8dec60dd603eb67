"""Embedded workers, which keep their ports through restarts, and the gateway in front of them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from backends.simulated.settings import shipped_model_dir
from loadtest.fleet.memory_group import MemoryGroup
from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process, started, uninterrupted, warmroute
from loadtest.load.metrics_page import sums
from loadtest.soak.attack.attacker import ATTACKED
from loadtest.soak.relay import LossyRelays

_PORTS_EACH = 3
_REPLAY_STEPS = 200
"""A short replay buffer, so that some losses exceed it and the view has to be relearned."""
_END_LIMIT_S = 60.0
_ASKS = 50
"""Tries of a change, because the gateway that gets it may just be taken over."""


@dataclass(frozen=True, slots=True)
class FleetShape:
    """The fleet's settings. Caches are small, so that they fill and evict within minutes."""

    workers: int = 4
    profile: str = "llama-3.1-8b-h100"
    time_scale: float = 4.0
    blocks: int = 4_000
    seed: int = 0
    logs: Path | None = None
    worker_flags: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    """Roles of the first workers, for a KV handover."""
    worker_program: tuple[str, ...] = ()
    """Command line that replaces ``warmroute worker`` and takes the same flags."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings that override the gateway's, section by section."""
    memory_limit_bytes: int | None = None
    """Memory limit of the gateway, set by a memory cgroup."""
    attacked: bool = False
    """Start one more worker, of the model `ATTACKED`, which accepts any body at once.

    The attacker's requests then burden the gateway, and not the workers of other clients.
    """


@dataclass(slots=True, eq=False)
class Worker:
    """One worker: its index, its id in the fleet, its first port (HTTP, then events and replay), and its process."""

    index: int
    port: int
    process: Process

    @property
    def id(self) -> str:
        return f"127.0.0.1:{self.port}"


GATEWAY: dict[str, Any] = {
    "headers": {"worker": True},
    "decisions_kept": 500,
    "timeouts": {"first_event_s": 30, "stream_idle_s": 5, "header_delay_s": 3, "comment_interval_s": 2},
    "residency": {"memo_bytes": 4_194_304, "approximate_bytes": 4_194_304},
}
"""Gateway settings of the soak.

Caches and logs are small, so that they are full long before the end and only a leak still grows. Limits are short, so
that stalls reach them.
"""


class Fleet:
    """Workers, relays and gateway within a ``with``. Methods that break or replace a process block: call them from a
    thread."""

    def __init__(self, shape: FleetShape, folder: Path) -> None:
        self.shape = shape
        self._folder = folder
        self._stack = ExitStack()
        self._gateways: list[Process] = []
        self.workers: list[Worker] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        self._gateway_port = free_ports(self.shape.workers * _PORTS_EACH + 2)
        self.url = f"http://127.0.0.1:{self._gateway_port}"
        self.admin_url = f"http://127.0.0.1:{self._gateway_port + 1}"
        first = self._gateway_port + 2
        self._stack.callback(self._stop_workers)
        for index in range(self.shape.workers):
            port = first + index * _PORTS_EACH
            self.workers.append(Worker(index, port, self._worker(index, port)))
        for worker in self.workers:
            worker.process.wait_for("kv events")
        sink_url = self._sink() if self.shape.attacked else None
        limit_bytes = self.shape.memory_limit_bytes
        self.group = self._stack.enter_context(MemoryGroup(limit_bytes)) if limit_bytes is not None else None
        self.relays = LossyRelays([f"tcp://127.0.0.1:{worker.port + 1}" for worker in self.workers])
        self._stack.callback(self.relays.close)
        command = warmroute("serve", "--config", str(self._write_config(sink_url)))
        self._command = self.group.command(command) if self.group is not None else command
        self._stack.callback(self._stop_gateways)
        self.gateway = self._gateway()

    def _sink(self) -> str:
        command = [sys.executable, "-P", "-m", "loadtest.soak.attack.sink", "--model", ATTACKED]
        process = started(self._stack, [*command, "--root", str(shipped_model_dir())], "attacked worker")
        return "http://" + process.wait_for(r"sink (\S+)")[1]

    def _gateway(self) -> Process:
        with uninterrupted():
            process = Process(self._command, "gateway", log=self._log("gateway"))
            self._gateways.append(process)
        process.wait_for("admin port listening")
        return process

    def _worker(self, index: int, port: int, more: Sequence[str] = ()) -> Process:
        shape = self.shape
        flags = ["--host", "127.0.0.1", "--port", str(port), "--seed", str(shape.seed + index)]
        flags += ["--kv-events-port", str(port + 1), "--kv-events-replay-port", str(port + 2)]
        flags += ["--kv-events-buffer-steps", str(_REPLAY_STEPS), "--num-gpu-blocks", str(shape.blocks)]
        flags += ["--profile", shape.profile, "--time-scale", str(shape.time_scale), *shape.worker_flags, *more]
        with uninterrupted():
            command = [*shape.worker_program, *flags] if shape.worker_program else warmroute("worker", *flags)
            return Process(command, f"worker {index}", log=self._log(f"worker-{index}"))

    def _log(self, name: str) -> Path | None:
        return self.shape.logs / f"{name}.log" if self.shape.logs is not None else None

    def _write_config(self, sink_url: str | None) -> Path:
        workers: list[dict[str, Any]] = [
            {
                "url": f"http://{worker.id}",
                "kv_events": {
                    "endpoint": endpoint,
                    "replay_endpoint": f"tcp://127.0.0.1:{worker.port + 2}",
                },
            }
            for worker, endpoint in zip(self.workers, self.relays.endpoints, strict=True)
        ]
        for entry, role in zip(workers, self.shape.roles, strict=False):
            entry["role"] = role
        if sink_url is not None:
            workers.append({"url": sink_url})
        ports = {"host": "127.0.0.1", "port": self._gateway_port, "admin_port": self._gateway_port + 1}
        config = _laid_over({**ports, "workers": workers, **GATEWAY}, self.shape.config)
        path = self._folder / "warmroute.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return path

    def _stop_workers(self) -> None:
        for worker in self.workers:
            self.resume(worker)
            worker.process.terminate()
        for worker in self.workers:
            worker.process.stop()

    def _stop_gateways(self) -> None:
        for gateway in self._gateways:
            gateway.stop()

    # Breaking and repairing a worker.

    def kill(self, worker: Worker) -> None:
        worker.process.kill()

    def restart(self, worker: Worker, flags: Sequence[str] = ()) -> None:
        """Start a new process with an empty cache on the ports of the ended one. `flags` override the worker's own."""
        worker.process = self._worker(worker.index, worker.port, flags)
        worker.process.wait_for("kv events")

    def pause(self, worker: Worker) -> None:
        """Send SIGSTOP to a worker. Its sockets stay open and accept data until their buffers are full."""
        os.kill(worker.process.pid, signal.SIGSTOP)

    def resume(self, worker: Worker) -> None:
        with suppress(ProcessLookupError):
            os.kill(worker.process.pid, signal.SIGCONT)

    # Replacing processes under load.

    def end(self, process: Process) -> None:
        """Wait until a process has ended by itself or by SIGTERM.

        Raises:
            StartError: it did not end with 0 in time.
        """
        if process.wait(_END_LIMIT_S) != 0:
            raise process.ended()
        if process in self._gateways:
            self._gateways.remove(process)

    def replace(self, worker: Worker) -> None:
        """Send SIGTERM to a worker without requests, and start a new one in its place."""
        worker.process.terminate()
        self.end(worker.process)
        self.restart(worker)

    def restart_gateway(self) -> None:
        """Send SIGKILL to the gateway and start a new one on its ports."""
        self.gateway.kill()
        self.gateway = self._gateway()

    def take_over(self) -> Process:
        """Start a gateway that takes the listening sockets; return the old one, which ends after its last request."""
        old, self.gateway = self.gateway, self._gateway()
        return old


def _laid_over(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(config)
    for key, value in changes.items():
        below = merged.get(key)
        merged[key] = {**below, **value} if isinstance(below, Mapping) else value
    return merged


class Admin:
    def __init__(self, url: str) -> None:
        # A new connection for each request: a kept one could lead to a gateway whose successor has taken over.
        self._client = httpx.AsyncClient(base_url=url, timeout=20, limits=httpx.Limits(max_keepalive_connections=0))

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send one request, again while the gateway that gets it is just being taken over."""
        for _ in range(_ASKS):
            answer = await self._client.request(method, path, **options)
            if answer.status_code == 200 or "handed_over" not in answer.text:
                break
        return answer

    async def workers(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = (await self.ask("GET", "/admin/v1/workers")).json()["workers"]
        return listed

    async def states(self) -> dict[str, str]:
        return {worker["id"]: worker["state"] for worker in await self.workers()}

    async def decisions(self, request_id: str) -> list[dict[str, Any]]:
        """Return the attempts at one request, as far as the gateway has kept them."""
        kept = (await self.ask("GET", "/admin/v1/decisions?limit=500")).json()["decisions"]
        return [each for each in kept if each["request_id"] == request_id]

    async def drain(self, worker_id: str, on: bool, wait_s: int = 0) -> None:
        """Drain or undrain a worker. With `wait_s`, wait until it has no request, or is ready.

        Raises:
            httpx.HTTPStatusError: the gateway refused, or it took longer.
        """
        path = f"/admin/v1/workers/{worker_id}/{'drain' if on else 'undrain'}"
        params = {"wait_s": wait_s} if wait_s else {}
        (await self.ask("POST", path, params=params, timeout=20 + wait_s)).raise_for_status()

    async def metrics(self) -> dict[str, float]:
        return sums((await self.ask("GET", "/metrics")).text)

    async def until_ready(self, worker_ids: list[str], limit_s: float) -> bool:
        """Wait until all these workers take requests; return False if that takes too long."""
        end_s = asyncio.get_running_loop().time() + limit_s
        while asyncio.get_running_loop().time() < end_s:
            states = await self.states()
            if all(states.get(worker_id) in ("ready", "half_open") for worker_id in worker_ids):
                return True
            await asyncio.sleep(0.1)
        return False

    async def aclose(self) -> None:
        await self._client.aclose()
