"""Start each proxy in front of the stand-in worker and stop it again."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from backends.simulated import model

NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log warn;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  client_max_body_size 64m; client_body_buffer_size 1m; keepalive_requests 1000000;
  upstream workers {{ server 127.0.0.1:{worker}; keepalive 4096; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://workers; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 3600s;
    }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running proxy: its name, base URL and the process whose tree is measured."""

    name: str
    url: str
    pid: int


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_until_open(port: int, limit_s: float = 20.0) -> None:
    """Return once something listens on `port`.

    Raises:
        RuntimeError: nothing did within `limit_s`.
    """
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"nothing listens on port {port} after {limit_s:.0f} s")


@contextmanager
def process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` with its output in `log`; end it on leaving."""
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield child
        finally:
            child.terminate()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


@contextmanager
def standin(folder: Path, interval_s: float = 0.02) -> Iterator[int]:
    """The stand-in worker as a process; yields its port."""
    port = free_port()
    command = [sys.executable, "-m", "loadtest.bench.standin", "--port", str(port), "--interval-s", str(interval_s)]
    with process(command, folder / "standin.log"):
        wait_until_open(port)
        yield port


@contextmanager
def nginx(worker: int, folder: Path) -> Iterator[Proxy]:
    """nginx with one worker process, keep-alive to the worker and no buffering."""
    port = free_port()
    binary = shutil.which("nginx") or "/usr/sbin/nginx"
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, worker=worker, port=port))
    command = [binary, "-p", str(folder), "-c", str(config), "-e", str(folder / "error.log")]
    with process(command, folder / "nginx.log") as child:
        wait_until_open(port)
        yield Proxy("nginx", f"http://127.0.0.1:{port}", child.pid)


def warmroute(name: str, flags: list[str]) -> Callable[[int, Path], AbstractContextManager[Proxy]]:
    """The gateway with `flags`, as `name`. With ``--config`` among them the file names the worker."""

    @contextmanager
    def start(worker: int, folder: Path) -> Iterator[Proxy]:
        port, admin = free_port(), free_port()
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "warmroute", "serve", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--log-level", "warning", "--model-dir", str(Path(model.__path__[0])), *flags]
        if "--config" not in flags:
            command += ["--worker", f"http://127.0.0.1:{worker}"]
        if "--admin-port" in flags:
            admin = int(flags[flags.index("--admin-port") + 1])
        else:
            command += ["--admin-port", str(admin)]
        with process(command, folder / f"{name}.log") as child:
            wait_until_open(port)
            _wait_until_ready(admin)
            yield Proxy(name, url, child.pid)

    return start


def _wait_until_ready(admin: int) -> None:
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s:
        if httpx.get(f"http://127.0.0.1:{admin}/readyz").status_code == 200:
            return
        time.sleep(0.1)
    raise RuntimeError("the gateway did not become ready within 20 s")


Start = Callable[[int, Path], AbstractContextManager[Proxy]]


def available() -> dict[str, Start]:
    """Every proxy that can be started here, by name."""
    found: dict[str, Start] = {}
    if shutil.which("nginx") or Path("/usr/sbin/nginx").exists():
        found["nginx"] = nginx
    found["warmroute round_robin"] = warmroute("warmroute round_robin", ["--policy", "round_robin"])
    found["warmroute"] = warmroute("warmroute", [])
    return found


@contextmanager
def workplace() -> Iterator[tuple[Path, ExitStack]]:
    """A temporary folder, and a stack that ends everything started in it."""
    with tempfile.TemporaryDirectory(prefix="warmroute-bench-") as folder, ExitStack() as stack:
        yield Path(folder), stack
