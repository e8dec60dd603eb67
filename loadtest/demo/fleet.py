"""The demo's processes: embedded workers, and the gateway in front of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from loadtest.fleet.process import Process, StartError, uninterrupted, warmroute

__all__ = ["Process", "Running", "StartError", "running"]


@dataclass(frozen=True, slots=True)
class Running:
    public_url: str
    admin_url: str
    worker_urls: tuple[str, ...]
    gateway: Process
    workers: tuple[Process, ...]


URL = r"(http://[^\s\"',]+)"


@contextmanager
def running(
    workers: int,
    policy: str,
    worker_flags: Sequence[str] = (),
    serve_flags: Sequence[str] = (),
    roles: Sequence[str] = (),
) -> Iterator[Running]:
    """Run `workers` embedded workers with a gateway in front of them, all on free loopback ports.

    `roles` are those of all workers, or empty.
    """
    with ExitStack() as stack:
        children: list[Process] = []

        def start(arguments: Sequence[str]) -> Process:
            with uninterrupted():
                child = Process(warmroute(*arguments), f"warmroute {arguments[0]}")
                stack.callback(child.stop)
            children.append(child)
            return child

        for number in range(workers):
            start(["worker", "--host", "127.0.0.1", "--port", "0", "--seed", str(number), *worker_flags])
        urls = tuple(child.wait_for(rf"worker {URL}").group(1) for child in children)
        flags = _with_roles(urls, roles) if roles else [flag for url in urls for flag in ("--worker", url)]
        ports = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0"]
        gateway = start(["serve", *ports, "--policy", policy, *flags, *serve_flags])
        public_url = gateway.wait_for(rf"public port.*{URL}").group(1)
        admin_url = gateway.wait_for(rf"admin port.*{URL}").group(1)
        yield Running(public_url, admin_url, urls, gateway, tuple(children[:-1]))


def _with_roles(urls: Sequence[str], roles: Sequence[str]) -> list[str]:
    workers = [{"url": url, "role": role} for url, role in zip(urls, roles, strict=True)]
    return ["--set", f"workers={json.dumps(workers)}"]
