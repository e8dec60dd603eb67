"""Which workers time-outs alone may not eject. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.fleet.health import WorkerState

_LEAST_SHARE = 0.5
"""Least share of a model's workers that stay in use when probes only time out. Envoy's panic threshold is the same."""
_RESERVE = (WorkerState.STARTING, WorkerState.ASLEEP, WorkerState.DRAINING)
"""States of workers that are not meant to be in use."""


def is_needed(endpoint: FleetEndpoint, same_role: Iterable[FleetEndpoint]) -> bool:
    """Return whether less than half of some model's workers would be left without `endpoint`.

    `same_role` are the endpoints of its role, itself included.
    """
    in_use = [one for one in same_role if one.state not in _RESERVE]
    models: Iterable[str | None] = endpoint.models or (None,)
    return any(_too_few([one for one in in_use if one.may_serve(model)], endpoint) for model in models)


def _too_few(workers: list[FleetEndpoint], without: FleetEndpoint) -> bool:
    left = sum(one is not without and one.health.condition is not WorkerState.UNHEALTHY for one in workers)
    return left < _LEAST_SHARE * len(workers)
