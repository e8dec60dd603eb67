"""Whether workers have so much to do that requests which may be refused are refused.

The limits are those of GAIE's saturation detector: the requests that wait in the engine, and the use of its KV cache.
"""

from __future__ import annotations

from collections.abc import Container

from router.config.model import Config
from router.placement.core import DecisionCore
from router.placement.fleet.endpoints import Candidate
from router.placement.fleet.fleet import Fleet


class Saturation:
    def __init__(self, config: Config, fleet: Fleet, core: DecisionCore) -> None:
        self._most_queued = config.picker.saturated_queued_requests
        self._most_used = config.picker.saturated_kv_usage
        self._most_requests = config.limits.max_requests_per_worker
        self._fleet = fleet
        self._loads = core.loads

    def of_all(self, model: str | None, within: Container[str] | None) -> bool:
        """Return whether every worker is saturated that is ready for `model`; False if none is ready."""
        ready = self._fleet.candidate_sets.of(model).ready
        able = [one for one in ready if within is None or one.endpoint.id in within]
        return bool(able) and all(map(self._saturated, able))

    def _saturated(self, candidate: Candidate) -> bool:
        load, most = candidate.load, self._most_requests
        if load is not None and (load.waiting > self._most_queued or load.kv_usage > self._most_used):
            return True
        return bool(most) and self._loads.of(candidate).reserved().running_requests >= most
