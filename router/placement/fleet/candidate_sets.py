"""The candidates for the requests of one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from router.placement.fleet.endpoints import PREFILL, Candidate, FleetEndpoint
from router.placement.fleet.health import WorkerState
from router.placement.fleet.models import FleetModels
from router.placement.fleet.roles import prefills

_MODELS_KEPT = 1_024
"""Bounded, because the names come from clients."""


@dataclass(frozen=True, slots=True)
class CandidateSet:
    """The endpoints that serve one model: `able` in any state, `ready` candidates, and `half_open` endpoints for
    trials.

    `shortest_tokens` is the least context length among `able`; None if no worker reports one. `model` is the name by
    which the workers report it: for a name that they resolve on request, that of its base.
    """

    able: tuple[FleetEndpoint, ...]
    ready: tuple[Candidate, ...]
    half_open: tuple[FleetEndpoint, ...]
    shortest_tokens: int | None
    model: str | None = None


class CandidateSets:
    """The candidate sets by model, kept until `forget`.

    With a KV `connector`, workers of the role prefill are no candidates for whole requests.
    """

    def __init__(self, endpoints: Mapping[str, FleetEndpoint], models: FleetModels, connector: str | None) -> None:
        self._endpoints = endpoints
        self._models = models
        self._connector = connector
        self._whole: dict[str | None, CandidateSet] = {}
        self._prefills: dict[str | None, CandidateSet] = {}

    def forget(self) -> None:
        self._whole.clear()
        self._prefills.clear()

    def of(self, model: str | None) -> CandidateSet:
        """Return the endpoints and candidates that serve `model`; None stands for any model."""
        return self._whole.get(model) or self._built(self._whole, model, prefill=False)

    def prefilling(self, model: str | None) -> CandidateSet:
        """Return the endpoints and candidates that may compute prompts of `model` for other workers."""
        return self._prefills.get(model) or self._built(self._prefills, model, prefill=True)

    def only_prefills(self, endpoint: FleetEndpoint) -> bool:
        return self._connector is not None and endpoint.role == PREFILL

    def _takes(self, endpoint: FleetEndpoint, prefill: bool) -> bool:
        if prefill:
            return prefills(endpoint.role, endpoint.labels, self._connector)
        return not self.only_prefills(endpoint)

    def _built(self, kept: dict[str | None, CandidateSet], named: str | None, *, prefill: bool) -> CandidateSet:
        model = self._models.base(named) or named
        able = tuple(
            endpoint
            for endpoint in self._endpoints.values()
            if endpoint.may_serve(model) and self._takes(endpoint, prefill)
        )
        lengths = [endpoint.lengths[model] for endpoint in able if model is not None and model in endpoint.lengths]
        ready = tuple(c for endpoint in able if endpoint.state is WorkerState.READY for c in endpoint.candidates)
        half_open = tuple(endpoint for endpoint in able if endpoint.state is WorkerState.HALF_OPEN)
        if len(kept) >= _MODELS_KEPT:
            kept.clear()
        found = kept[named] = CandidateSet(able, ready, half_open, min(lengths, default=None), model)
        return found
