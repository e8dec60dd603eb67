"""Envoy as a process on loopback: with the picker, in a configuration of `deploy/envoy`, or alone, taking turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process, started

FILES = Path(__file__).parents[2] / "deploy" / "envoy"
FULL_DUPLEX = FILES / "full-duplex.yaml"
FAIL_OPEN = FILES / "fail-open.yaml"
_READY = "all dependencies initialized. starting workers"
_RESPONSES = {
    "response_header_mode": "SEND",
    "response_body_mode": "FULL_DUPLEX_STREAMED",
    "response_trailer_mode": "SEND",
}
"""The response modes of a picker that learns from all of the answer."""


def start_envoy(
    stack: ExitStack,
    binary: Path,
    workers: Sequence[str],
    picker_ports: Sequence[int],
    *,
    file: Path = FULL_DUPLEX,
    port: int | None = None,
    learns: bool = False,
) -> tuple[Process, str]:
    """Start Envoy in front of the workers with these URLs; return its process and its URL.

    Without pickers it takes turns. `port` is where clients connect, by default a free one. `learns`: the answers pass
    through the picker, too.

    Raises:
        StartError: it did not start.
    """
    port = free_ports(1) if port is None else port
    config = configured(file, port, workers, picker_ports, learns=learns)
    command = [str(binary), "--config-yaml", json.dumps(config), "--concurrency", "1", "--use-dynamic-base-id"]
    envoy = started(stack, command, "envoy")
    envoy.wait_for(_READY)
    return envoy, f"http://127.0.0.1:{port}"


def configured(
    file: Path, port: int, workers: Sequence[str], picker_ports: Sequence[int], *, learns: bool = False
) -> dict[str, Any]:
    """Return the configuration in `file` with these ports and workers, on loopback."""
    config: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    (listener,) = config["static_resources"]["listeners"]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    clusters = {cluster["name"]: cluster for cluster in config["static_resources"]["clusters"]}
    if clusters["workers"]["type"] == "STATIC":
        clusters["workers"]["load_assignment"]["endpoints"] = _endpoints(workers)
    if not picker_ports:
        manager["http_filters"] = manager["http_filters"][1:]
        config["static_resources"]["clusters"] = [_taking_turns(clusters["workers"], workers)]
        return config
    if learns:
        manager["http_filters"][0]["typed_config"]["processing_mode"].update(_RESPONSES)
    clusters["picker"]["load_assignment"]["endpoints"] = _endpoints([f"http://127.0.0.1:{one}" for one in picker_ports])
    return config


def _taking_turns(cluster: dict[str, Any], workers: Sequence[str]) -> dict[str, Any]:
    kept = {
        name: cluster[name]
        for name in ("name", "connect_timeout", "typed_extension_protocol_options", "circuit_breakers")
    }
    assignment = {"cluster_name": cluster["name"], "endpoints": _endpoints(workers)}
    return {**kept, "type": "STATIC", "lb_policy": "ROUND_ROBIN", "load_assignment": assignment}


def _endpoints(urls: Sequence[str]) -> list[dict[str, Any]]:
    addresses = [urlsplit(url) for url in urls]
    return [
        {
            "lb_endpoints": [
                {"endpoint": {"address": {"socket_address": {"address": one.hostname, "port_value": one.port}}}}
                for one in addresses
            ]
        }
    ]
