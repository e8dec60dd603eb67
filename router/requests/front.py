"""What takes requests in, as the rest of a process sees it: the HTTP gateway, or the endpoint picker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from router.config.model import Config, LimitsConfig, ModelConfig, RouteConfig, TenantConfig
from router.metrics.instruments import Reading
from router.metrics.registry import Registry
from router.placement.core import DecisionCore
from router.placement.fleet.fleet import Fleet
from router.requests.metrics import GatewayMetrics
from router.requests.preview import PreviewedRequest
from router.security.instance import Instance
from router.security.tls import WorkerTls
from router.tokenization.prompt_identifier import PromptIdentifier


class ListenError(OSError):
    """The gateway cannot listen on an address. The message names the address, the reason, and the setting to change."""


class Front(Protocol):
    """A front, for those who change its settings and those who look into it."""

    def use_routes(self, routes: Sequence[RouteConfig]) -> None: ...

    def use_models(self, models: Mapping[str, ModelConfig]) -> None:
        """Use other aliases, fallbacks, service levels and another default for the requests that follow."""

    def use_callers(self, tenants: Mapping[str, TenantConfig], limits: LimitsConfig) -> None: ...

    def learn_worker_key(self, endpoint_id: str, key: str | None) -> None:
        """Set the API key that a worker added at run time requires; None if it requires none or was removed."""

    async def preview(
        self, path: str, headers: Mapping[str, str], body: bytes, key_name: str | None = None
    ) -> PreviewedRequest:
        """Return the request that these bytes would become if sent with that key, identified but not dispatched.

        Raises:
            RequestError: as the front would answer.
        """

    def limits(self) -> list[dict[str, Any]]:
        """Return the fill of the limits of tenants and keys."""

    def attainment(self, now_s: float) -> dict[str, float | None]:
        """Return the share of recent streams that met their service levels, by the role of their workers."""

    def in_flight(self) -> dict[str, int]:
        """Return requests by the id of their worker's endpoint."""

    def statistics(self) -> dict[str, Any]: ...
    def readings(self) -> Iterator[Reading]: ...


@dataclass(frozen=True)
class FrontContext:
    """The parts of the process that a front uses and does not own."""

    config: Config
    core: DecisionCore
    fleet: Fleet
    identity: PromptIdentifier
    metrics: GatewayMetrics
    registry: Registry
    worker_tls: WorkerTls
    instance: Instance
