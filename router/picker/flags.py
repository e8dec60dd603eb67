"""The flags that manifests of GAIE and llm-d give their pickers, as settings, so that replacing the image is enough.

Sources: gateway-api-inference-extension (cmd/epp/runner) and llm-d-router, both 2026.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any, Final

from router.config.problems import ConfigError, Problem
from router.config.tree import Located
from router.picker.translate.quantities import seconds

IGNORED: Final = (
    "--allow-experimental-plugins",
    "--config-file",
    "--config-text",
    "--disable-endpoint-subset-filter",
    "--enable-cert-reload",
    "--enable-grpc-stream-metrics",
    "--enable-pprof",
    "--grpc-max-recv-msg-size",
    "--grpc-max-send-msg-size",
    "--ha-enable-leader-election",
    "--health-checking",
    "--kv-cache-usage-percentage-metric",
    "--lora-info-metric",
    "--metrics-endpoint-auth",
    "--metrics-staleness-threshold",
    "--model-server-metrics-https-insecure-skip-verify",
    "--model-server-metrics-path",
    "--model-server-metrics-port",
    "--model-server-metrics-scheme",
    "--pool-group",
    "--refresh-metrics-interval",
    "--refresh-prometheus-metrics-interval",
    "--tls-cipher-suites",
    "--tls-min-version",
    "--total-queued-requests-metric",
    "--total-running-requests-metric",
    "--tracing",
)
"""Flags that change nothing here: the picker has no such part, or does it in any case."""
PLUGINS: Final = frozenset({"--config-file", "--config-text"})
"""Those of `IGNORED` that say how workers are chosen."""
NOT_OFFERED: Final = frozenset({"--port", "--uds", "--takeover", "--processes", "--access-log", "--no-access-log"})
"""Flags of settings that a picker refuses or has no part for; and --port, which is --grpc-port here."""
_POOL: Final = "pool"
"""Label with the name of a worker's pool, if there are several."""
_VERBOSE: Final = 4
"""The first level of -v at which GAIE's picker logs for debugging."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("endpoint picker, as in GAIE's and llm-d's manifests")
    several = "repeat it with --pool-name for several pools, in their order"
    port = f"port of the picker (default 9002); {several}"
    group.add_argument("--grpc-port", metavar="PORT", type=int, action="append", help=port)
    group.add_argument("--grpc-health-port", metavar="PORT", type=int, help="further port for health checks alone")
    group.add_argument("--metrics-port", metavar="PORT", type=int, help="the admin port, with /metrics")
    pool = "InferencePool whose pods are the workers; repeat it for several, each with a --grpc-port"
    group.add_argument("--pool-name", metavar="NAME", action="append", help=pool)
    group.add_argument("--pool-namespace", metavar="NAME", help="its namespace (default: that of the picker's own pod)")
    group.add_argument(
        "--endpoint-selector", metavar="LABELS", help="label selector of the workers' pods, without a pool"
    )
    group.add_argument("--endpoint-target-ports", metavar="PORTS", help="ports of these pods, comma-separated")
    group.add_argument("--secure-serving", metavar="BOOL", nargs="?", const="true", help="TLS (default true)")
    scores = "say how each endpoint was ranked (default false)"
    group.add_argument("--emit-endpoint-scores", metavar="BOOL", nargs="?", const="true", help=scores)
    group.add_argument("--cert-path", metavar="DIR", help="folder with tls.crt and tls.key (default: self-signed)")
    drain = "longest wait for open streams to end after SIGTERM, as in 30s or 1m30s (default 30s)"
    group.add_argument("--drain-timeout", metavar="TIME", type=_duration_s, help=drain)
    group.add_argument("--zap-encoder", metavar="FORMAT", choices=("json", "console"), help="json or console")
    group.add_argument("-v", "--v", dest="verbosity", metavar="LEVEL", type=int, help=f"debug logs from {_VERBOSE} on")
    for flag in IGNORED:
        group.add_argument(flag, nargs="?", const="", dest=f"ignored:{flag}", help=argparse.SUPPRESS)


def _duration_s(text: str) -> float:
    duration_s = seconds(text)
    if duration_s is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write one as 30s or 1m30s")
    return duration_s


def settings_of(arguments: argparse.Namespace) -> dict[str, Located]:
    """Return the settings, by dotted path, of the flags that were given.

    Raises:
        ConfigError: several pools do not have a port each.
    """
    return {name: Located(str(value), flag) for name, value, flag in _given(arguments) if value is not None}


def _given(arguments: argparse.Namespace) -> Iterator[tuple[str, object, str]]:
    """Yield each setting with its value, None if its flag was not given, and the flag."""
    ports, pools = arguments.grpc_port or [None], arguments.pool_name or []
    if len(pools) > 1:
        yield "picker.pools", json.dumps(_pools(pools, ports)), "--pool-name"
    else:
        yield "port", ports[-1], "--grpc-port"
    yield "picker.health_port", arguments.grpc_health_port, "--grpc-health-port"
    yield "admin_port", arguments.metrics_port, "--metrics-port"
    yield "picker.scores", arguments.emit_endpoint_scores, "--emit-endpoint-scores"
    yield "picker.secure", arguments.secure_serving, "--secure-serving"
    if arguments.cert_path is not None:
        yield "tls.cert_file", f"{arguments.cert_path}/tls.crt", "--cert-path"
        yield "tls.key_file", f"{arguments.cert_path}/tls.key", "--cert-path"
    yield "timeouts.drain_s", arguments.drain_timeout, "--drain-timeout"
    if arguments.zap_encoder is not None:
        yield "log_format", "json" if arguments.zap_encoder == "json" else "text", "--zap-encoder"
    if arguments.verbosity is not None and arguments.verbosity >= _VERBOSE:
        yield "log_level", "debug", "-v"
    if sources := _sources(arguments):
        yield "discovery.sources", json.dumps(sources), "--pool-name" if arguments.pool_name else "--endpoint-selector"


def _pools(names: list[str], ports: list[int | None]) -> dict[str, Any]:
    """Return `picker.pools`. The workers of each pool have its name as a label, which their source gives them."""
    if len(set(names)) != len(names) or len(ports) != len(names):
        problem = f"{len(names)} pools and {len([one for one in ports if one is not None])} ports"
        raise ConfigError([Problem("--pool-name", problem, "write --pool-name NAME --grpc-port PORT for each pool")])
    return {name: {"port": port, "workers": {_POOL: name}} for name, port in zip(names, ports, strict=True)}


def _sources(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the sources of workers by name."""
    namespace = {} if arguments.pool_namespace is None else {"namespace": arguments.pool_namespace}
    if names := arguments.pool_name:
        found: list[dict[str, Any]] = [{"kubernetes": {"pool": name, **namespace}} for name in names]
        if len(found) == 1:
            return {"pool": found[0]}
        labelled = [{**one, "defaults": {f"label.{_POOL}": name}} for name, one in zip(names, found, strict=True)]
        return {f"pool-{number}": one for number, one in enumerate(labelled, 1)}
    if arguments.endpoint_selector is None:
        return {}
    ports = (arguments.endpoint_target_ports or "8000").split(",")
    pods = {"pods": arguments.endpoint_selector, **namespace}
    return {f"pods-{port}": {"kubernetes": {**pods, "port": port}} for port in map(_port, ports)}


def _port(text: str) -> int | str:
    return int(text) if text.strip().isdigit() else text


def ignored(arguments: argparse.Namespace) -> list[str]:
    """Return the flags that were given and change nothing."""
    given = [flag for flag in IGNORED if getattr(arguments, f"ignored:{flag}") is not None]
    pool, selector = arguments.pool_name is not None, arguments.endpoint_selector is not None
    if selector and pool:
        given.append("--endpoint-selector")
    if arguments.endpoint_target_ports is not None and (pool or not selector):
        given.append("--endpoint-target-ports")
    if arguments.pool_namespace is not None and not (pool or selector):
        given.append("--pool-namespace")
    return given
