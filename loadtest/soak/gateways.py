"""Embedded workers and several gateways in front of them, as processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from loadtest.fleet.process import Process, uninterrupted, warmroute

_URL = r"(http://[^\s\"',]+)"


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway's addresses."""

    public_url: str
    admin_url: str

    def replicas(self) -> dict[str, Any]:
        return dict(httpx.get(f"{self.admin_url}/admin/v1/replicas", timeout=5).json())

    def sharing(self, count: int) -> bool:
        """Whether Redis answers, and it hears all `count` gateways, itself included."""
        said = self.replicas()
        return not said["alone"] and sum(each["silent_s"] is not None for each in said["replicas"]) == count

    def ready(self, workers: int, residency: str) -> bool:
        """Whether all workers are ready, and their cache views of this kind."""
        listed = httpx.get(f"{self.admin_url}/admin/v1/workers", timeout=5).json()["workers"]
        views = [candidate["residency"] for worker in listed for candidate in worker["candidates"]]
        return len(views) == workers and all(view == residency for view in views) and all_ready(listed)


def all_ready(listed: Sequence[dict[str, Any]]) -> bool:
    """Whether all workers of a list can serve."""
    return all(worker["state"] == "ready" for worker in listed)


@contextmanager
def workers(count: int, flags: Sequence[str]) -> Iterator[list[str]]:
    """Run embedded workers, and yield their URLs."""
    with ExitStack() as stack:
        own = ["worker", "--host", "127.0.0.1", "--port", "0", *flags]
        processes = [_start(stack, [*own, "--seed", str(number)]) for number in range(count)]
        yield [process.wait_for(rf"worker {_URL}").group(1) for process in processes]


@contextmanager
def gateways(count: int, flags: Sequence[str]) -> Iterator[list[Gateway]]:
    with ExitStack() as stack:
        own = ["serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0", *flags]
        processes = [_start(stack, own) for _ in range(count)]
        yield [
            Gateway(
                process.wait_for(rf"public port.*{_URL}").group(1), process.wait_for(rf"admin port.*{_URL}").group(1)
            )
            for process in processes
        ]


def _start(stack: ExitStack, arguments: Sequence[str]) -> Process:
    with uninterrupted():
        process = Process(warmroute(*arguments), f"warmroute {arguments[0]}")
        stack.callback(process.stop)
    return process
