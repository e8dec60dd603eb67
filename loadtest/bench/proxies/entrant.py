"""A proxy that can be started, a running proxy, and its worker."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process, StartError

OPEN_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running proxy: its name, base URL and the process whose tree is measured.

    `lines` are header lines that each request to it needs, and `program` starts it if it is a Warmroute. `inspect` is
    called after the measures of a round and returns the proxy's own report.

    Raises (`inspect`):
        NotAsStated: the proxy was not in the state that its row claims.
    """

    name: str
    url: str
    pid: int
    inspect: Callable[[], str] | None = None
    lines: str = ""
    program: tuple[str, ...] = ()


class NotAsStated(RuntimeError):
    """A proxy was not in the state that its row claims; the message names its state."""


@dataclass(frozen=True, slots=True)
class Place:
    """The environment of a proxy: the ports of its stand-in, and a folder for its files and logs.

    Proxies that are measured with one worker only use the first port.
    """

    worker_port: int
    folder: Path
    further_ports: tuple[int, ...] = ()

    @property
    def worker_url(self) -> str:
        """Base URL of the stand-in's first worker."""
        return f"http://127.0.0.1:{self.worker_port}"

    @property
    def worker_urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in (self.worker_port, *self.further_ports)]


@dataclass(frozen=True, slots=True)
class Entrant:
    """A proxy to measure: its start function, its version, and a short description of its settings."""

    name: str
    version: str
    setup: str
    start: Callable[[Place], AbstractContextManager[Proxy]]


@dataclass(frozen=True, slots=True)
class Missing:
    """A proxy that is not measured, and the reason."""

    name: str
    reason: str


@contextmanager
def running(
    name: str, command: list[str], port: int, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """Run `command` as a process and wait until `port` accepts connections; stop it on leaving.

    Raises:
        StartError: the port did not accept connections in time, or the process ended.
    """
    process = Process(command, name, environment, log=folder / f"{name.replace(' ', '-')}.log")
    try:
        _wait_until_open(process, port)
        yield process
    finally:
        process.stop()


def _wait_until_open(process: Process, port: int) -> None:
    end_s = time.monotonic() + OPEN_LIMIT_S
    while time.monotonic() < end_s:
        if not process.alive:
            raise process.ended()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise StartError(f"{process.name} listens nowhere after {OPEN_LIMIT_S:.0f} s:\n{process.tail()}")


@contextmanager
def standin(folder: Path, interval_s: float = 0.02, kv_events: bool = False) -> Iterator[int]:
    """Run the stand-in with one worker as a process; yield its port."""
    with standins(1, folder, interval_s, kv_events) as (port,):
        yield port


@contextmanager
def standins(count: int, folder: Path, interval_s: float = 0.02, kv_events: bool = False) -> Iterator[tuple[int, ...]]:
    """Run the stand-in with `count` workers as one process; yield their ports."""
    first = free_ports(count)
    ports = tuple(range(first, first + count))
    command = [sys.executable, "-m", "loadtest.bench.standin", "--interval-s", str(interval_s)]
    command += ["--kv-events"] if kv_events else []
    with running("stand-in", [*command, "--port", *map(str, ports)], ports[0], folder):
        yield ports
