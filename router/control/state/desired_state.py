"""The desired state: what operators can change while the gateway runs, as one document with a version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from backends.worker import Endpoint, parse_endpoint
from router.config.model import (
    Config,
    ModelConfig,
    PolicyConfig,
    RateLimitsConfig,
    RouteConfig,
    TenantConfig,
    WorkerConfig,
)

Tree = dict[str, Any]
"""Live settings as nested dicts of plain values."""


class LiveLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of `limits` that can change while the gateway runs: what tenants and keys may use."""

    tenants: dict[str, RateLimitsConfig] = {}
    keys: dict[str, RateLimitsConfig] = {}


class LiveSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings that can change while the gateway runs. `workers` are by id (``host:port``), in the order in which
    they were added.

    A further setting becomes live when it has a field here and a step in `router.control.reconciler`.
    """

    workers: dict[str, WorkerConfig]
    policy: PolicyConfig
    policies: dict[str, PolicyConfig] = {}
    routes: tuple[RouteConfig, ...] = ()
    models: dict[str, ModelConfig] = {}
    tenants: dict[str, TenantConfig] = {}
    limits: LiveLimits = LiveLimits()


class FoundWorker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker that sources of workers name: `source` is the one that counts, `also` are the others.

    `leaving`: no source names it any more. It gets no new requests, and leaves once it has none.
    """

    worker: WorkerConfig
    source: str
    also: tuple[str, ...] = ()
    leaving: bool = False


class DesiredState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Live settings with their version, which grows by one with each change.

    `lineage` is a random name of the sequence of versions. It changes when versions start again at 1, so that equal
    tags always mean equal changes by operators.

    `discovered` are the workers of `settings` that sources name and the settings of the start do not, by id, with those
    that the API has removed. `discovery` grows by one when they change, and `version` does not.
    """

    version: int
    lineage: str
    settings: LiveSettings
    discovered: dict[str, FoundWorker] = {}
    discovery: int = 0

    @property
    def tag(self) -> str:
        """The version as an entity tag (RFC 9110), with its quotes."""
        return f'"{self.lineage}.{self.version}"'

    @property
    def mark(self) -> str:
        """The version with that of the discovered workers."""
        return f"{self.version}.{self.discovery}"

    @property
    def effective(self) -> LiveSettings:
        """The settings, with the workers drained that are leaving."""
        workers = self.settings.workers
        leaving = [name for name, found in self.discovered.items() if found.leaving and name in workers]
        if not leaving:
            return self.settings
        drained = {name: msgspec.structs.replace(workers[name], maintenance=True) for name in leaving}
        return msgspec.structs.replace(self.settings, workers={**workers, **drained})


def live_settings(config: Config) -> LiveSettings:
    """Return the part of `config` that can change while the gateway runs."""
    return LiveSettings(
        workers={worker_id(worker): worker for worker in config.workers},
        policy=config.policy,
        policies=config.policies,
        routes=config.routes,
        models=config.models,
        tenants=config.tenants,
        limits=LiveLimits(tenants=config.limits.tenants, keys=config.limits.keys),
    )


def with_live_settings(config: Config, settings: LiveSettings) -> Config:
    return msgspec.structs.replace(
        config,
        workers=tuple(settings.workers.values()),
        policy=settings.policy,
        policies=settings.policies,
        routes=settings.routes,
        models=settings.models,
        tenants=settings.tenants,
        limits=msgspec.structs.replace(config.limits, tenants=settings.limits.tenants, keys=settings.limits.keys),
    )


def endpoint_of(worker: WorkerConfig) -> Endpoint:
    """Return the address, and the Host that requests carry.

    Raises:
        ValueError: `worker.url` is not a worker URL.
    """
    endpoint = parse_endpoint(worker.url)
    if worker.host == "worker":
        return endpoint
    return replace(endpoint, host_header=None if worker.host == "client" else worker.host)


def worker_id(worker: WorkerConfig) -> str:
    """Return ``host:port``.

    Raises:
        ValueError: `worker.url` is not a worker URL.
    """
    return parse_endpoint(worker.url).authority


def tree_of(settings: LiveSettings) -> Tree:
    """Return `settings` as a tree. It has the workers' keys."""
    tree: Tree = msgspec.to_builtins(settings)
    return tree


def from_tree(tree: Tree) -> LiveSettings:
    """Return the settings of a tree.

    Raises:
        msgspec.ValidationError: the tree does not have the shape of live settings.
    """
    return msgspec.convert(tree, LiveSettings)
