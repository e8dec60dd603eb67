"""Settings of a worker, from what a source says about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from backends.discovery.fields import with_defaults
from backends.discovery.registration import Registration
from backends.discovery.report import Workers
from router.config.model import DiscoverySourceConfig, WorkerConfig
from router.config.tree import dotted
from router.discovery.networks import AddressNotAllowedError, Networks, check_addresses
from router.workers.settings import worker_findings

MODEL = "model"
"""Label with the model that a source names. The models that a worker serves are those that it lists itself."""


class FoundSettings:
    """The settings of one source's workers. Workers that have not changed are not read again.

    With `networks`, workers of other addresses are refused. `refused` are the workers of the last answer that cannot be
    used, with the reason.
    """

    def __init__(self, config: DiscoverySourceConfig, networks: Networks = ()) -> None:
        self._config = config
        self._networks = networks
        self._read: dict[str, tuple[Registration, WorkerConfig | str]] = {}
        self.refused: tuple[str, ...] = ()

    def of(self, workers: Workers) -> dict[str, WorkerConfig]:
        """Return the settings of the workers that can be used."""
        self._read = {name: self._settings(name, worker) for name, worker in workers.items()}
        self.refused = tuple(f"{name}: {one}" for name, (_, one) in self._read.items() if isinstance(one, str))
        return {name: one for name, (_, one) in self._read.items() if isinstance(one, WorkerConfig)}

    def _settings(self, name: str, worker: Registration) -> tuple[Registration, WorkerConfig | str]:
        known = self._read.get(name)
        if known is not None and known[0] == worker:
            return known
        try:
            check_addresses(worker, self._networks)
            return worker, settings_of(worker, self._config)
        except (ValueError, AddressNotAllowedError) as error:  # msgspec's errors are ValueErrors too
            return worker, str(error)


def settings_of(worker: Registration, config: DiscoverySourceConfig) -> WorkerConfig:
    """Return the settings of a worker that the source `config` names.

    Raises:
        ValueError: it is no worker that the gateway can use.
    """
    described = with_defaults(worker, config.defaults) if config.defaults else worker
    settings = msgspec.convert(dict(_values(described, config)), WorkerConfig)
    for path, problem, fix in worker_findings(settings, ()):
        raise ValueError(f"{dotted(path)}: {problem}; {fix}")
    return settings


def _values(worker: Registration, config: DiscoverySourceConfig) -> Iterator[tuple[str, Any]]:
    yield "url", worker.url
    if worker.kv_events is not None:
        yield "kv_events", msgspec.to_builtins(worker.kv_events)
    labels = dict(worker.labels)
    if worker.model is not None:
        labels.setdefault(MODEL, worker.model)
    yield "labels", labels
    yield "api_key", config.api_key
    for name in ("name", "role", "weight"):
        value = getattr(worker, name)
        if value is not None:
            yield name, value
