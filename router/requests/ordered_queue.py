"""A queue in place of the policy's hold, whose requests have an order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from router.errors import RequestError
from router.placement.request import Request
from router.placement.tickets import Held, Queued, Reject, Ticket
from router.requests.incoming import IncomingRequest
from router.requests.queues.request import WaitingRequest


class OrderedQueue(Protocol):
    """Places requests in their turn."""

    def explained(self, incoming: IncomingRequest, request: Request) -> Mapping[str, object]:
        """Return the turn that a request would get now, for operators."""

    def ask(
        self, incoming: IncomingRequest, request: Request, now_s: float, within: frozenset[str] | None
    ) -> Ticket | Held | Queued | Reject | RequestError:
        """Place the request, let it wait (`Held`), or refuse it."""

    def enter(self, incoming: IncomingRequest, request: WaitingRequest) -> bool:
        """Offer `request` when it is its turn. Return False if `incoming` does not wait here."""

    def overdue(self, incoming: IncomingRequest) -> RequestError | None:
        """Take out a request whose front waits no longer, and return its error; None if it does not wait here."""

    def leave(self, incoming: IncomingRequest) -> None:
        """Free the place of a request that has been placed or has ended."""
