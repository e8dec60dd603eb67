"""Turns the edges of an attempt's life into those of its ticket, and asks for another worker after a failure."""

from __future__ import annotations

from dataclasses import dataclass

from router.errors import RequestError
from router.gateway.flow.attempt.attempt import Attempt
from router.gateway.flow.outbound import OutboundRequest
from router.placement.dispatcher import Dispatcher
from router.placement.fleet.fleet import Fleet
from router.placement.request import FailurePoint, Usage
from router.placement.retry_budget import tried
from router.placement.ticket_life import Tickets
from router.placement.tickets import Reject, Ticket
from router.requests.answers.error_format import is_error
from router.requests.metrics import GatewayMetrics
from router.requests.placing import PlacementGate
from router.requests.queues.quarantine import Quarantine


@dataclass(frozen=True, slots=True)
class AttemptEdges:
    """Notes what became of attempts at the tickets and the quarantine, and decides about retries."""

    gate: PlacementGate
    dispatcher: Dispatcher
    tickets: Tickets
    quarantine: Quarantine
    fleet: Fleet
    metrics: GatewayMetrics

    def retry(self, outbound: OutboundRequest, attempt: Attempt, now_s: float) -> Ticket | RequestError:
        """Release a failed attempt, and ask for another worker."""
        failure, ticket = attempt.failure, attempt.ticket
        assert failure is not None
        why = (failure.point, now_s, failure.reason, failure.retry_after_s)
        try:
            within = self.gate.within(outbound, tried(ticket))
        except RequestError as error:
            self.tickets.failed(ticket, *why)
            return error
        again = self.dispatcher.retry(ticket, *why, within=within)
        if isinstance(again, Reject):
            if self.gate.models.falls_back and failure.point is FailurePoint.REFUSED:
                other = self.gate.fallback(outbound, ticket.request, again, now_s, False, within)
                if isinstance(other, Ticket):
                    return other
            return again.error
        self.metrics.retries.add(1.0, (failure.point.value,))
        return again

    def replaceable(self, outbound: OutboundRequest, ticket: Ticket, point: FailurePoint, now_s: float) -> bool:
        """Return whether another worker is ready to take over from an attempt that fails at `point`."""
        try:
            within = self.gate.within(outbound, tried(ticket))
        except RequestError:
            return False
        return self.dispatcher.has_alternative(ticket, point, now_s, within=within)

    def should_discard(self, outbound: OutboundRequest, attempt: Attempt, now_s: float, *, commented: bool) -> bool:
        """Return whether the client should not get a complete server error, or a complete 404 about the model.

        True if another worker can take over, or if the error cannot become an event of a stream.
        """
        failure, connection, model = attempt.failure, attempt.connection, attempt.ticket.request.model
        assert failure is not None and connection is not None
        if failure.point is FailurePoint.UNSERVED and model is not None:
            self.fleet.unknown_model(model)
        if self.replaceable(outbound, attempt.ticket, failure.point, now_s):
            return True
        # After comments, the error must become an event of the stream, which needs the API's error format.
        erred = failure.point is FailurePoint.ANSWERED
        return erred and commented and not is_error(b"".join(connection.pieces))

    def suspect(self, outbound: OutboundRequest, attempt: Attempt, *, lost: bool) -> None:
        """Notify the quarantine that the request may have crashed the attempt's worker.

        `lost`: the connection broke; otherwise the worker answered with a server error.
        """
        endpoint = attempt.ticket.candidate.endpoint
        self.quarantine.failed(endpoint, self.gate.body_key(outbound), attempt.connected_s, lost=lost)

    def opened(self, outbound: OutboundRequest, attempt: Attempt, now_s: float) -> None:
        if attempt.response is not None and attempt.response.events and not attempt.refused:
            self.tickets.first_token(attempt.ticket, now_s)
        if self.quarantine.active:
            self.quarantine.survived(self.gate.body_key(outbound))

    def worked_s(self, attempt: Attempt, now_s: float) -> float:
        """Return when the attempt's worker last worked on any request, as far as it shows.

        That is when its token counters moved. Of a worker without counters, bytes of its answers show it.
        """
        evidence = self.fleet.evidence(attempt.ticket.candidate.endpoint, now_s)
        return evidence.generation_s if evidence.counts_tokens else evidence.progress_s

    def finish(self, outbound: OutboundRequest, attempt: Attempt, usage: Usage, now_s: float) -> None:
        if outbound.digest is not None or self.quarantine.active:
            self.quarantine.answered(self.gate.body_key(outbound), now_s, identified=outbound.digest is not None)
        self.tickets.finished(attempt.ticket, usage, now_s, status=attempt.status)

    def fail(self, attempt: Attempt, now_s: float) -> None:
        failure = attempt.failure
        assert failure is not None
        self.tickets.failed(attempt.ticket, failure.point, now_s, failure.reason, failure.retry_after_s)

    def cancel(self, attempt: Attempt, now_s: float) -> None:
        """Abort an attempt and release it. A tunnel counts as finished, because its client was served."""
        attempt.release(reusable=False)
        if attempt.switched:
            self.tickets.finished(attempt.ticket, Usage(), now_s)
        else:
            self.tickets.cancelled(attempt.ticket, now_s)
