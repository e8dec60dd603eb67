"""The settings of a sidecar: those of a gateway, with other defaults, for exactly one worker."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from backends.worker import parse_endpoint
from router.config.load import Loaded, problems_of
from router.config.model import Config, PolicyConfig, SidecarConfig, WorkerConfig
from router.config.problems import ConfigError, Finding
from router.tokenization.local.choices import LOCAL

_URL = re.compile(r"https?://[^\s/?#@]+")
WORKER_URL = "http://127.0.0.1:8000"
"""vLLM's default port, on loopback."""
PORT = 8080
"""The public port, because vLLM has 8000."""
METRICS = {"/metrics": ("GET",)}
"""Gateways and Prometheus read the worker's metrics through the sidecar."""


def sidecar_config(loaded: Loaded) -> Config:
    """Return the settings with the sidecar's defaults in place of the gateway's.

    One worker needs no policy, and the gateways before it hold, queue and isolate requests. So each request is sent on
    unchanged, or refused at once, so that a gateway can try another worker. No prompt needs a tokenizer from the hub.

    Raises:
        ConfigError: the settings are for more than one worker or process.
    """
    config = loaded.config
    if unfit := problems_of(_unfit(config), loaded.places):
        raise ConfigError(unfit)
    defaults = {
        "port": PORT,
        "workers": (WorkerConfig(WORKER_URL),),
        "policy": PolicyConfig(rule="round_robin", hold=False, lanes=False),
        "timeouts.queue_s": 0.0,
        "tokenizer": LOCAL,
        "auth.isolate_cache": "off",
        "auth.allow": ("transfer_params", "priority", "rank"),
    }
    for name, value in defaults.items():
        path = tuple(name.split("."))
        if not any(place[: len(path)] == path for place in loaded.places):
            config = _with(config, path, value)
    config = replace(config, extra_paths=METRICS | config.extra_paths)
    return replace(config, residency=replace(config.residency, kv_events=False, self_test=False))


def _with(config: Config, path: tuple[str, ...], value: object) -> Config:
    if len(path) == 1:
        return replace(config, **{path[0]: value})
    section = getattr(config, path[0])
    return replace(config, **{path[0]: replace(section, **{path[1]: value})})


def _unfit(config: Config) -> Iterator[Finding]:
    if len(config.workers) > 1:
        problem = f"there are {len(config.workers)} workers, and a sidecar has one"
        yield ("workers",), problem, "name one worker, or run `warmroute serve`"
    if config.processes != 1:
        yield ("processes",), "a sidecar runs one process", "remove it, or write 1"
    yield from _registration(config.sidecar)
    if config.takeover is not None:
        yield ("takeover",), "a sidecar hands nothing over", "remove it, and drain the worker instead"


def _registration(settings: SidecarConfig) -> Iterator[Finding]:
    for index, url in enumerate(settings.gateways):
        if not _URL.fullmatch(url):
            yield ("sidecar", "gateways", index), f"{url!r} is not the URL of an admin port", "write http://HOST:PORT"
    if settings.advertise_url is not None:
        try:
            parse_endpoint(settings.advertise_url)
        except ValueError as error:
            problem, _, fix = str(error).partition("; ")
            yield ("sidecar", "advertise_url"), problem, fix
