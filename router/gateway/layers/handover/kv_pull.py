"""One request whose worker pulls the start of its prompt from another worker, and computes the rest."""

from __future__ import annotations

import math
from secrets import token_hex
from typing import Final

import msgspec

from backends.vllm.handover.connector import HandoverPeer
from backends.vllm.handover.offloading_peer import pull_params
from backends.vllm.handover.request_body import with_params
from router.config.model import HandoverConfig
from router.gateway.flow.outcomes import AttemptEvent
from router.gateway.flow.plan import After, PlannedAttempt, PlannedLeg, RequestPlan, Within
from router.metrics.instruments import Counter
from router.placement.core import DecisionCore
from router.placement.handover.links import Transfer
from router.placement.handover.plan import HANDOVER_FIRST_EVENT_S, LegPlan, peer_address
from router.placement.request import FailurePoint, Usage
from router.placement.tickets import Ticket
from router.requests.outgoing import OutgoingBody

PULLED: Final = "pulled"
MISSED: Final = "missed"
NOT_REPORTED: Final = "not_reported"
FAILED: Final = "failed"
STOPPED: Final = "stopped"
_PLAIN_AFTER: Final = frozenset({FailurePoint.SENT, FailurePoint.LATE, FailurePoint.ANSWERED})
"""After failures at these points, the request may run once more without the pull."""


class KvPull(RequestPlan):
    """The pull of one request: its placement, and what became of it.

    It is settled once, with its outcome. After `FAILED` the request runs without a pull.
    """

    __slots__ = ("_first_s", "_planned", "_pulls", "_sent", "_settled", "_transfer", "ticket")

    def __init__(self, pulls: Pulls, planned: LegPlan, ticket: Ticket) -> None:
        self._pulls = pulls
        self._planned = planned
        self.ticket: Final = ticket
        """The placement of the request on the worker that pulls."""
        self._sent = False
        self._transfer: Transfer | None = None
        self._first_s: float | None = None
        """When the first event of a streamed answer arrived."""
        self._settled = False

    @property
    def first(self) -> Ticket:
        return self.ticket

    def depends_at(self, ticket: Ticket) -> bool:
        return ticket is self.ticket and not self._settled

    def leg(self, ticket: Ticket, now_s: float) -> PlannedLeg:
        return PlannedLeg("", False, HANDOVER_FIRST_EVENT_S if self.depends_at(ticket) else math.inf)

    def added_to(self, made: OutgoingBody, ticket: Ticket, now_s: float) -> OutgoingBody:
        return msgspec.structs.replace(made, body=self._pulling(ticket, made.body, now_s))

    def _pulling(self, ticket: Ticket, body: bytes, now_s: float) -> bytes:
        if self._sent or not self.depends_at(ticket):
            return body
        self._sent = True
        self._transfer = self._pulls.planner.transfer(ticket, now_s, self._planned)
        source = self._planned.source
        address = peer_address(source)
        if address is None or not source.live:
            return body
        # Clients choose request ids, and another gateway may send to the same workers.
        peer = HandoverPeer(host=address[0], side_port=address[1])
        return with_params(body, pull_params(token_hex(16), peer))

    def failed(self, attempt: PlannedAttempt, within: Within, now_s: float) -> Ticket | After:
        failure = attempt.failure
        if failure is None or not self.depends_at(attempt.ticket):
            return After.USUAL
        self.settle(FAILED)
        if failure.cause is AttemptEvent.LOST or failure.point not in _PLAIN_AFTER:
            return After.USUAL
        plain = self._pulls.dispatcher.run_plain(attempt.ticket, failure.reason, now_s)
        return After.ALONE if plain else After.USUAL

    def opened(self, ticket: Ticket, now_s: float) -> None:
        if self.depends_at(ticket):
            self._pulls.tickets.arrived(ticket)
            self._first_s = now_s if ticket.request.stream else None

    def finished(self, ticket: Ticket, usage: Usage) -> Usage:
        """Settle by the cached tokens that the complete answer reports, and learn the speed of a pull that was made.

        Return the usage without cached tokens if the worker has pulled: they do not describe its own cache.
        """
        if self.depends_at(ticket):
            self.settle(self._seen(usage))
        return Usage(None, usage.completion_tokens) if ticket is self.ticket else usage

    def _seen(self, usage: Usage) -> str:
        if usage.cached_tokens is None:
            return NOT_REPORTED
        cost = self._planned.cost
        moved = usage.cached_tokens - (cost.loaded_tokens - cost.tokens)
        if 2 * moved < cost.tokens:
            return MISSED
        if self._transfer is not None and self._first_s is not None:
            self._pulls.planner.transferred(self._transfer._replace(tokens=moved), self._first_s)
        return PULLED

    def end(self, now_s: float) -> None:
        self.settle(STOPPED)

    def settle(self, outcome: str) -> None:
        if not self._settled:
            self._settled = True
            self._pulls.outcomes.add(1.0, (outcome,))


class Pulls:
    """The parts of placement that pulls use, and where to report."""

    def __init__(self, config: HandoverConfig, core: DecisionCore, outcomes: Counter) -> None:
        self.config = config
        self.dispatcher = core.dispatcher
        self.planner = core.planner
        self.tickets = core.tickets
        self.outcomes = outcomes
