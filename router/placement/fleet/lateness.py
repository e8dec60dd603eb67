"""Judge a probe that timed out. Pure."""

from __future__ import annotations

from enum import StrEnum

from router.config.model import HealthConfig
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.health import SERVING


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
    if endpoint.health.condition not in SERVING:
        fleet.probe_failed(endpoint.id, reason, now_s, late_since_s=began_s)
        return LateVerdict.COUNTED
    if fleet.evidence(endpoint, now_s).progress_s >= began_s:
        endpoint.health.progressed()
        return LateVerdict.PROGRESS
    if _nobody_answers(fleet, config, endpoint, began_s, now_s):
        return LateVerdict.NOBODY
    fleet.probe_failed(endpoint.id, reason, now_s, late_since_s=began_s)
    return LateVerdict.COUNTED if endpoint.health.kept_since_s is None else LateVerdict.NEEDED


def _nobody_answers(fleet: Fleet, config: HealthConfig, endpoint: FleetEndpoint, began_s: float, now_s: float) -> bool:
    """Return whether the other workers, if there are any, are silent, too. A refusal also crosses the network."""
    since_s = min(began_s, now_s - config.probe_interval_s - config.probe_timeout_s)
    others = [other.evidence for other in fleet.endpoints if other is not endpoint]
    return bool(others) and all(max(one.life_s, one.refused_s, one.reset_s) < since_s for one in others)
