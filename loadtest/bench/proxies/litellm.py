"""LiteLLM's proxy with one worker process, without a database, keys or retries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtest.bench.frames import MODEL
from loadtest.bench.proxies.entrant import Entrant, Place, Proxy, running
from loadtest.bench.proxies.environments import Package
from loadtest.fleet.ports import free_ports

PACKAGE = Package("litellm", "1.106.2", "[proxy]")
_CONFIG = """
model_list:
- model_name: {model}
  litellm_params: {{model: hosted_vllm/{model}, api_base: "{worker}/v1", api_key: none}}
litellm_settings: {{num_retries: 0, telemetry: false}}
general_settings: {{dangerously_permit_weak_or_unset_master_key: true}}
"""
_ENVIRONMENT = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION"}
"""Settings that its production guide recommends, and no download of prices at the start."""


def entrant(package: Package, environment: Path) -> Entrant:
    """Return LiteLLM from `environment`."""

    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        port = free_ports(1)
        config = place.folder / "litellm.yaml"
        config.write_text(_CONFIG.format(model=MODEL, worker=place.worker_url))
        command = [str(environment / "bin" / "litellm"), "--config", str(config), "--host", "127.0.0.1"]
        command += ["--port", str(port), "--num_workers", "1", "--telemetry", "False"]
        with running("litellm", command, port, place.folder, _ENVIRONMENT) as process:
            yield Proxy("litellm", f"http://127.0.0.1:{port}", process.pid)

    return Entrant("litellm", package.version, "proxy server, one worker process", start)
