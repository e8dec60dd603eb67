"""A proxy that can be started, a running proxy, and its workers."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.bench.bodies import chats
from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process, until

OPEN_LIMIT_S = 60.0


@dataclass(slots=True)
class Proxy:
    """A running proxy: its name, base URL and the process whose tree is measured, and results of measures in a round.

    `standin_url` is the first worker's. Each request needs the `headers`, and `program` starts the
    proxy if it is a Warmroute. `inspect` is called after the measures of a round and returns the proxy's own report.
    `capacity` is its closed-loop rate of 2 kB requests per second. `tokens_per_s` is the most that its streams can
    deliver, or None if no measure has exceeded that.

    Raises (`inspect`):
        NotAsStated: the proxy was not in the state that its row claims.
    """

    name: str
    url: str
    pid: int
    standin_url: str
    seed: int = 0
    inspect: Callable[[], str] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = ()
    capacity: float | None = None
    tokens_per_s: float | None = None

    def requests(self, system_chars: int = 2_000) -> list[bytes]:
        """Return requests for answers that are not streamed."""
        return chats(self.url, self.headers, system_chars)

    def stream_requests(self) -> list[bytes]:
        return chats(self.url, self.headers, endless=True)


class NotAsStated(RuntimeError):
    """A proxy was not in the state that its row claims; the message names its state."""


@dataclass(frozen=True, slots=True)
class Place:
    """The ports of a proxy's stand-in workers, and a folder for its files and logs.

    Proxies that are measured with one worker only use the first port.
    """

    ports: tuple[int, ...]
    folder: Path

    @property
    def worker_urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]


@dataclass(frozen=True, slots=True)
class Entrant:
    """A proxy to measure: its start function, its version, and a short description of its settings."""

    name: str
    version: str
    setup: str
    start: Callable[[Place], AbstractContextManager[Proxy]]


class NotInstalled(RuntimeError):
    """A proxy cannot be measured; the message is the reason."""


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
        until(lambda: _is_open(process, port), lambda: f"{name} listens nowhere:\n{process.tail()}", OPEN_LIMIT_S)
        yield process
    finally:
        process.stop()


def _is_open(process: Process, port: int) -> bool:
    if not process.alive:
        raise process.ended()
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def standins(count: int, folder: Path, interval_s: float = 0.02, kv_events: bool = False) -> Iterator[Place]:
    """Run the stand-in with `count` workers as one process."""
    first = free_ports(count)
    ports = tuple(range(first, first + count))
    command = [sys.executable, "-m", "loadtest.bench.standin", "--interval-s", str(interval_s)]
    command += ["--kv-events"] if kv_events else []
    with running("stand-in", [*command, "--port", *map(str, ports)], ports[0], folder):
        yield Place(ports, folder)
