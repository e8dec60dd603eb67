"""Embedded workers, and a gateway in front of them, as processes on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from loadtest.fleet.envoy import start_envoy
from loadtest.fleet.process import Process, started, until, warmroute

URL = r"(http://[^\s\"',]+)"
READY_LIMIT_S = 60.0
_ANY_PORT = ("--host", "127.0.0.1", "--port", "0")


@dataclass(frozen=True, slots=True)
class Running:
    public_url: str
    admin_url: str
    worker_urls: tuple[str, ...]
    gateway: Process
    workers: tuple[Process, ...]

    def wait_until_ready(self, limit_s: float = READY_LIMIT_S) -> str:
        """Wait until every worker is ready; return the model that they serve.

        Raises:
            StartError: `limit_s` has passed.
        """
        until(
            lambda: (
                len(workers := self._listed()) == len(self.workers) and all(one["state"] == "ready" for one in workers)
            ),
            lambda: (
                "not every worker was ready: "
                + ", ".join(f"{one['id']} is {one['state']} ({one['reason']})" for one in self._listed())
            ),
            limit_s,
        )
        return str(self._listed()[0]["models"][0]["id"])

    def _listed(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = httpx.get(f"{self.admin_url}/admin/v1/workers").json()["workers"]
        return listed


@contextmanager
def running(
    workers: int,
    policy: str,
    worker_flags: Sequence[str] = (),
    serve_flags: Sequence[str] = (),
) -> Iterator[Running]:
    """Run `workers` embedded workers with a gateway in front of them, all on free loopback ports."""
    with ExitStack() as stack:
        found = start_workers(stack, [[*_ANY_PORT, "--seed", str(seed), *worker_flags] for seed in range(workers)])
        urls = tuple(url for url, _ in found)
        flags = [flag for url in urls for flag in ("--worker", url)]
        gateway, public_url, admin_url = start_gateway(stack, ["--policy", policy, *flags, *serve_flags])
        yield Running(public_url, admin_url, urls, gateway, tuple(process for _, process in found))


@contextmanager
def behind_envoy(
    workers: int,
    policy: str | None,
    envoy: Path,
    worker_flags: Sequence[str] = (),
    picker_flags: Sequence[str] = (),
    *,
    learns: bool = False,
) -> Iterator[tuple[str, str]]:
    """Run embedded workers behind Envoy, with a picker that follows `policy`; without one Envoy takes turns.

    `learns`: the answers pass through the picker, whose setting `picker.learn` is then that of `picker_flags`.

    Yield the URL of Envoy and the model that the workers serve.
    """
    with ExitStack() as stack:
        found = start_workers(stack, [[*_ANY_PORT, "--seed", str(seed), *worker_flags] for seed in range(workers)])
        urls = tuple(url for url, _ in found)
        ports = []
        if policy is not None:
            flags = [flag for url in urls for flag in ("--worker", url)]
            picker, port, admin_url = start_picker(stack, ["--policy", policy, *flags, *picker_flags])
            Running("", admin_url, urls, picker, tuple(process for _, process in found)).wait_until_ready()
            ports.append(port)
        _, url = start_envoy(stack, envoy, urls, ports, learns=learns)
        yield url, str(httpx.get(f"{urls[0]}/v1/models").json()["data"][0]["id"])


def start_workers(
    stack: ExitStack,
    flags: Sequence[Sequence[str]],
    ready: Callable[[int], None] = lambda number: None,
    logs: Path | None = None,
) -> list[tuple[str, Process]]:
    """Start an embedded worker with each of `flags`, all at once; return URLs and processes once all listen.

    `ready` is called with the number of each worker that listens.

    Raises:
        StartError: a worker did not start.
    """
    processes = []
    for number, own in enumerate(flags):
        log = logs / f"worker-{number}.log" if logs is not None else None
        processes.append(started(stack, warmroute("worker", *own), f"worker {number}", log=log))
    found = []
    for number, process in enumerate(processes):
        found.append((process.wait_for(rf"worker {URL}")[1], process))
        ready(number)
    return found


def start_gateway(stack: ExitStack, flags: Sequence[str]) -> tuple[Process, str, str]:
    """Start a gateway on free ports; return its process, public URL and admin URL once both ports listen.

    Raises:
        StartError: it did not start.
    """
    gateway = started(stack, warmroute("serve", *_ANY_PORT, "--admin-port", "0", *flags), "warmroute serve")
    public_url = gateway.wait_for(rf"public port.*{URL}")[1]
    return gateway, public_url, gateway.wait_for(rf"admin port.*{URL}")[1]


def start_picker(stack: ExitStack, flags: Sequence[str]) -> tuple[Process, int, str]:
    """Start a picker without TLS on free ports; return its process, its port and its admin URL once both ports listen.

    Raises:
        StartError: it did not start.
    """
    command = warmroute("picker", "--grpc-port", "0", "--secure-serving=false", "--admin-port", "0", *flags)
    picker = started(stack, command, "warmroute picker")
    port = int(picker.wait_for(r"public port.*grpc://[^\s\"]*:(\d+)")[1])
    return picker, port, picker.wait_for(rf"admin port.*{URL}")[1]
