"""Judge a probe that timed out. Pure.

A time-out says that one answer is late, and not why. It counts for nobody if no other worker has given a sign since the
probe began, because then the cause is probably here or on the way. It does not count if the worker has made progress
since. And time-outs alone never leave less than `health.panic_threshold` of a model's workers in use. That is Envoy's
panic threshold, with the same default: a fleet that is merely slow would otherwise lose worker after worker, each under
the load of those before.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from router.config.model import HealthConfig
from router.placement.endpoints import FleetEndpoint
from router.placement.fleet import Fleet
from router.placement.health import SERVING, WorkerState

_RESERVE = (WorkerState.STARTING, WorkerState.ASLEEP, WorkerState.DRAINING)
"""States of workers that are not meant to be in use."""


class LateVerdict(StrEnum):
    """The effect of a probe that timed out."""

    COUNTED = "counted"
    PROGRESS = "progress"
    """It does not count: the worker has made progress since."""
    NOBODY = "nobody"
    """It does not count: no worker has answered anything since."""
    NEEDED = "needed"
    """It would have ejected the worker, and too few would be left."""


def probe_late(
    fleet: Fleet, config: HealthConfig, endpoint: FleetEndpoint, reason: str, began_s: float, now_s: float
) -> LateVerdict:
    """Record a probe of `endpoint` that began at `began_s` and got no answer in time."""
    if endpoint.health.condition not in SERVING:
        fleet.probe_failed(endpoint.id, reason, now_s, late_since_s=began_s)
        return LateVerdict.COUNTED
    if fleet.evidence(endpoint, now_s).progress_s >= began_s:
        endpoint.health.progressed()
        return LateVerdict.PROGRESS
    if _nobody_answers(fleet, config, endpoint, began_s, now_s):
        return LateVerdict.NOBODY
    needed = is_needed(fleet, endpoint, config.panic_threshold)
    fleet.probe_failed(endpoint.id, reason, now_s, late_since_s=began_s, needed=needed)
    return LateVerdict.COUNTED if endpoint.health.kept_since_s is None else LateVerdict.NEEDED


def _nobody_answers(fleet: Fleet, config: HealthConfig, endpoint: FleetEndpoint, began_s: float, now_s: float) -> bool:
    """Return whether the other workers, if there are any, are silent, too. A refusal also crosses the network."""
    since_s = min(began_s, now_s - config.probe_interval_s - config.probe_timeout_s)
    others = [other.evidence for other in fleet.endpoints if other is not endpoint]
    return bool(others) and all(max(one.life_s, one.refused_s, one.reset_s) < since_s for one in others)


def is_needed(fleet: Fleet, endpoint: FleetEndpoint, threshold: float) -> bool:
    """Return whether less than `threshold` of some model's workers would be left without `endpoint`."""
    role = fleet.only_prefills(endpoint)
    peers = [one for one in fleet.endpoints if one.state not in _RESERVE and fleet.only_prefills(one) is role]
    models: Iterable[str | None] = endpoint.models or (None,)
    return any(_too_few([one for one in peers if one.may_serve(model)], endpoint, threshold) for model in models)


def _too_few(workers: list[FleetEndpoint], without: FleetEndpoint, threshold: float) -> bool:
    left = sum(one is not without and one.health.condition is not WorkerState.UNHEALTHY for one in workers)
    return left < threshold * len(workers)
