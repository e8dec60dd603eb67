"""The workers of one pool, which has a port of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from router.errors import ErrorKind, RequestError
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.health import SERVING


class WorkerPool:
    """The endpoints of a fleet that have certain labels. They change with the fleet."""

    __slots__ = ("_fleet", "_labels", "name")

    def __init__(self, name: str, labels: Mapping[str, str], fleet: Fleet) -> None:
        self.name = name
        self._labels = tuple(labels.items())
        self._fleet = fleet

    def __contains__(self, endpoint_id: object) -> bool:
        endpoint = self._fleet.get(endpoint_id) if isinstance(endpoint_id, str) else None
        return endpoint is not None and self._has(endpoint)

    def _has(self, endpoint: FleetEndpoint) -> bool:
        return all(endpoint.labels.get(name) == value for name, value in self._labels)

    def _members(self) -> Iterator[FleetEndpoint]:
        return (endpoint for endpoint in self._fleet.endpoints if self._has(endpoint))

    @property
    def serving(self) -> int:
        return sum(endpoint.state in SERVING for endpoint in self._members())

    def refusal(self, model: str | None) -> RequestError | None:
        """Return the error for a model that only other pools serve; None if a worker of this one may serve it."""
        if model is None:
            return None
        wanted, members = self._fleet.models.base(model) or model, list(self._members())
        if not members or any(not one.models_known or one.may_serve(wanted) for one in members):
            return None
        served = ", ".join(self._fleet.models.among(self)[:10])
        message = f"The model `{model}` does not exist; the pool {self.name} serves: {served}."
        return RequestError(ErrorKind.MODEL_NOT_FOUND, message, param="model")
