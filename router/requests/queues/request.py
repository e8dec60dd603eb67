from __future__ import annotations

from typing import Protocol

from policies.view import WorkerId
from router.placement.fleet.endpoints import FleetEndpoint
from router.security.callers import TenantUsage


class WaitingRequest(Protocol):
    """A request in progress, as the queues, the quarantine and the watches of lost workers see it."""

    def __hash__(self) -> int: ...

    @property
    def account(self) -> TenantUsage | None:
        """The tenant's usage; requests that wait count against its quota."""

    @property
    def served_as(self) -> tuple[str, str]:
        """The route and the model that metrics name."""

    @property
    def body_key(self) -> int:
        """The quarantine's key of the body; 0 without a body, because such a request is never suspected."""

    @property
    def endpoints(self) -> tuple[FleetEndpoint, ...]: ...

    @property
    def unanswered(self) -> tuple[FleetEndpoint, ...]: ...

    @property
    def awaited(self) -> tuple[FleetEndpoint, ...]:
        """The endpoints in `unanswered`, and the endpoints that an attempt is still connecting to."""

    def sent_to(self, worker: WorkerId | None) -> bool: ...

    def offer(self) -> None:
        """Ask for a worker again. The request may leave the queue, or stay."""

    def endpoint_lost(self, endpoint: FleetEndpoint) -> None:
        """Move the request away from `endpoint` if another worker is ready."""

    def worker_gone(self, endpoint: FleetEndpoint) -> None:
        """Give up what runs at `endpoint`: no answer will come from it."""


def count(request: WaitingRequest, change: int) -> None:
    """Change the number of the tenant's waiting requests by `change`, +1 or -1."""
    account = request.account
    if account is not None:
        account.queued += change
