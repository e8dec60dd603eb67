"""Check the settings of pools and rewrites."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from router.config.load import Loaded
from router.config.model import Config
from router.config.problems import Finding

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""A name in Kubernetes, so that a pool can have that of its InferencePool."""


def pool_findings(loaded: Loaded, config: Config) -> Iterator[Finding]:
    pools = config.picker.pools
    if not pools:
        return
    if ("port",) in loaded.places:
        yield ("port",), "port is set, and picker.pools gives each pool a port of its own", "remove port"
    taken = {port: where for port, where in ((config.admin_port, "admin_port"), _health(config)) if port}
    for name, pool in pools.items():
        path = ("picker", "pools", name)
        if not _NAME.fullmatch(name):
            yield path, f"{name!r} cannot name a pool", "write small letters, digits, - and ."
        if pool.port in taken:
            yield (*path, "port"), f"port {pool.port} is taken by {taken[pool.port]}", "write another"
        if not pool.workers:
            yield (*path, "workers"), "a pool without labels has every worker", "write labels that its workers have"
        if pool.port:
            taken[pool.port] = f"picker.pools.{name}"
    yield from _unused_objects(config)


def _unused_objects(config: Config) -> Iterator[Finding]:
    for name, source in config.discovery.sources.items():
        wanted = source.kubernetes.pool if source.kubernetes else None
        if wanted is not None and wanted not in config.picker.pools:
            yield (
                ("discovery", "sources", name, "kubernetes", "pool"),
                f"no pool of picker.pools is called {wanted}, so its InferenceObjectives would hold nowhere",
                "give the pool of picker.pools the name of the InferencePool",
            )


def rewrite_findings(config: Config) -> Iterator[Finding]:
    for number, rule in enumerate(config.picker.rewrites):
        if not rule.targets:
            yield ("picker", "rewrites", number, "targets"), "a rewrite has no target", "write {MODEL: WEIGHT}"


def _health(config: Config) -> tuple[int, str]:
    return config.picker.health_port or 0, "picker.health_port"
