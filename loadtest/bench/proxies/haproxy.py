"""HAProxy with one thread and keep-alive on both sides."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from loadtest.bench.proxies.entrant import Entrant, Missing, Place, Proxy, running
from loadtest.bench.proxies.nginx import find_binary
from loadtest.fleet.ports import free_ports

_CONFIG = """
global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout connect 5s
  timeout client 3600s
  timeout server 3600s
  http-reuse always
  option http-no-delay
frontend public
  bind 127.0.0.1:{port} backlog 4096
  default_backend workers
backend workers
  server worker 127.0.0.1:{worker} pool-max-conn 4096
"""


def found() -> Entrant | Missing:
    """Return HAProxy if it is installed."""
    binary = find_binary("haproxy")
    if binary is None:
        return Missing("haproxy", "not installed (apt install haproxy)")
    said = subprocess.run([binary, "-v"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"version (\d[\d.]*)", said)

    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        port = free_ports(1)
        config = place.folder / "haproxy.cfg"
        config.write_text(_CONFIG.format(worker=place.worker_port, port=port))
        with running("haproxy", [binary, "-f", str(config), "-db"], port, place.folder) as process:
            yield Proxy("haproxy", f"http://127.0.0.1:{port}", process.pid)

    return Entrant("haproxy", version[1] if version else "?", "one thread, http-reuse always", start)
