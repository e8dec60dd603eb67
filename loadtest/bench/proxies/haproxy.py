"""HAProxy with one thread and keep-alive on both sides."""

from __future__ import annotations

from loadtest.bench.proxies.entrant import Entrant, Missing, Place
from loadtest.bench.proxies.installed import installed

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
    return installed("haproxy", "apt install haproxy", "one thread, http-reuse always", _arguments)


def _arguments(place: Place, port: int) -> list[str]:
    config = place.folder / "haproxy.cfg"
    config.write_text(_CONFIG.format(worker=place.worker_port, port=port))
    return ["-f", str(config), "-db"]
