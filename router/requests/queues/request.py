from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from policies.view import WorkerId
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.tickets import Ticket
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


class LeavingRequest(Protocol):
    """A request in progress that can leave its worker for another request."""

    @property
    def tickets(self) -> Sequence[Ticket]: ...

    def give_way(self, begun: bool, left: Callable[[bool], None]) -> bool:
        """Leave the worker, if no byte of an answer has come, or in any case if it may have `begun`.

        Before that call `left` with whether the request waits again. Return False if it stays.
        """


def count(request: WaitingRequest, change: int) -> None:
    """Change the number of the tenant's waiting requests by `change`, +1 or -1."""
    account = request.account
    if account is not None:
        account.queued += change
