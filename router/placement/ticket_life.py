"""The life of a placed request: the lifecycle events of its ticket, from the first token to the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from policies.view import FleetView, LifecycleEvent, LifecycleEventKind, Residency, WorkerId
from router.placement.comparison import Comparisons
from router.placement.fleet import traffic
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.health import WorkerState
from router.placement.fleet.residency_source import ResidencySource
from router.placement.learning.output_length import OutputLengths
from router.placement.load.fleet_load import WorkerLoads
from router.placement.load.running import ReservationStage
from router.placement.metrics import PlacementMetrics
from router.placement.named_policies import NamedPolicies
from router.placement.policies import shadow
from router.placement.request import FailurePoint, Usage
from router.placement.tickets import Counts, Ticket
from router.residency.exact.difference import Difference
from router.residency.view import Match


class TrafficObserver(Protocol):
    """Measures the traffic. Must not raise."""

    def placed(self, ticket: Ticket, fleet: FleetView) -> None: ...
    def first_token(self, ticket: Ticket, now_s: float) -> None: ...

    def progressed(self, ticket: Ticket, gaps_s: Sequence[float], now_s: float) -> None:
        """A stream brought some tokens, with `gaps_s` between them. The last one arrived at `now_s`."""

    def finished(self, ticket: Ticket, cached_tokens: int | None, output_tokens: int | None, now_s: float) -> None:
        """A request was served. None: the response did not report the number."""


class Tickets:
    """Follow tickets to their ends: learn from what is seen, release the load once, and notify the policy.

    Any event may come late, twice or out of order.
    """

    def __init__(
        self,
        fleet: Fleet,
        residency: ResidencySource,
        loads: WorkerLoads,
        policies: NamedPolicies,
        metrics: PlacementMetrics,
        output_lengths: OutputLengths,
        counts: Counts,
        traffic: TrafficObserver | None = None,
    ) -> None:
        self._fleet = fleet
        self._residency = residency
        self._loads = loads
        self._policies = policies
        self._metrics = metrics
        self.output_lengths = output_lengths
        self._comparisons = Comparisons(metrics)
        self._counts = counts
        self.traffic = traffic
        self.on_prefills_done: list[Callable[[WorkerId], None]] = []
        """Called when a worker has no reserved prefill left. Callbacks must not dispatch."""
        self.on_room: list[Callable[[Ticket], None]] = []
        """Called when a prefill or a request has ended: its worker has more room. Callbacks must not dispatch."""

    def placed(self, ticket: Ticket) -> None:
        """Measure a request that was placed for the first time."""
        if self.traffic is not None:
            self.traffic.placed(ticket, ticket.record.fleet)

    def reserve_blocks(self, ticket: Ticket, found: Match | None) -> None:
        """Reserve the blocks of the prompt at the ticket's worker. `found` is the match of the decision."""
        request = ticket.request
        if request.prompt is not None:
            predicted, recomputes = ticket.predicted_cached_tokens, not request.reads_cache
            self._residency.slot(ticket.candidate.slot).reserve(
                request.prompt, ticket.id, predicted, recomputes=recomputes, found=found
            )

    def arrived(self, ticket: Ticket) -> None:
        """Record that the prompt's KV cache has come from another worker: the answer has begun, before its
        `first_token`."""
        if not ticket.ended and ticket.candidate.live:
            self.reserve_blocks(ticket, None)

    def first_token(self, ticket: Ticket, now_s: float) -> None:
        """Record the first event of a stream.

        Do not call it for whole-body responses, whose first byte does not mark the end of the prefill: set
        `Request.stream` to False and call `finished`.
        """
        if ticket.ended:
            return
        if not ticket.load.account.prefilled(ticket.reservation, now_s) and not ticket.received:
            return
        ticket.received = False
        ticket.record.ttft_s = now_s - ticket.reservation.at_s
        ticket.load.account.answer_began(ticket.reservation, now_s)
        if self.traffic is not None:
            self.traffic.first_token(ticket, now_s)
        if ticket.shadow is not None:
            shadow.first_token(ticket.shadow, ticket.record.ttft_s)
        if ticket.situation is not None:
            self._loads.observe(ticket.load, ticket.situation, ticket.record.ttft_s, now_s)
            ticket.situation = None
        self._succeeded(ticket, now_s, complete=False)
        if ticket.request.prompt is not None and ticket.candidate.live:
            self._residency.slot(ticket.candidate.slot).first_token(ticket.id)
        self._tell_policy(LifecycleEventKind.FIRST_TOKEN, ticket, now_s)
        self._tell_prefills_done(ticket)
        for listener in self.on_room:
            listener(ticket)

    def progress(self, ticket: Ticket, events: int, gaps_s: Sequence[float] = (), now_s: float = 0.0) -> None:
        """Record that the stream has brought `events` in total.

        `gaps_s` are the gaps between the latest reads, of which the last was at `now_s`.
        """
        ticket.events = events
        ticket.load.account.progressed(ticket.reservation, ticket.load.streamed_tokens(events))
        if gaps_s and self.traffic is not None:
            self.traffic.progressed(ticket, gaps_s, now_s)

    def finished(self, ticket: Ticket, usage: Usage, now_s: float, *, status: int = 200) -> None:
        """Record a complete answer. A 4xx is complete, too, but nothing was prefilled for it."""
        if ticket.ended:
            return
        served = status < 400
        usage = self._comparisons.completed(ticket, usage)
        generated = ticket.output_tokens = _generated(ticket, usage) if served else None
        self._succeeded(ticket, now_s, complete=True)
        difference = None
        if served and ticket.request.prompt is not None and ticket.candidate.live:
            difference = self._residency.slot(ticket.candidate.slot).finished(
                ticket.request.prompt,
                generated if generated is not None else ticket.load.streamed_tokens(ticket.events) or None,
                usage.cached_tokens if ticket.request.tells_cached else None,
                ticket_id=ticket.id,
            )
        if served:
            self._comparisons.compare(ticket, usage, difference)
            if ticket.shadow is not None:
                shadow.finished(ticket.shadow, usage.cached_tokens)
            decode_s = ticket.decode_s(now_s)
            if self.traffic is not None:
                self.traffic.finished(ticket, usage.cached_tokens, generated, now_s)
            self.output_lengths.observe(ticket.request, decode_s, generated)
            if decode_s is not None:
                self._loads.decoded(ticket.load, ticket.reservation, generated, decode_s, now_s)
        self._end(ticket, now_s, "finished" if served else f"finished with status {status}", served=served)
        self._counts["finished"] += 1
        self._tell_policy(LifecycleEventKind.FINISHED, ticket, now_s, usage.cached_tokens)

    def explained(self, ticket_id: int, difference: Difference) -> None:
        self._comparisons.explained(ticket_id, difference)

    def failed(
        self, ticket: Ticket, point: FailurePoint, now_s: float, reason: str, retry_after_s: float | None = None
    ) -> None:
        """Record that the attempt failed and is not retried. `Dispatcher.retry` calls this itself."""
        if ticket.ended:
            return
        endpoint = ticket.candidate.endpoint
        if point is FailurePoint.REFUSED:
            traffic.avoid(self._fleet, endpoint, retry_after_s, now_s, trial=ticket.trial)
        elif point is FailurePoint.STOPPING:
            traffic.stops(self._fleet, endpoint, now_s, trial=ticket.trial)
        elif point is FailurePoint.LATE:
            traffic.late(self._fleet, endpoint, reason, ticket.reservation.at_s, now_s, trial=ticket.trial)
        elif point in (FailurePoint.ANSWERED, FailurePoint.UNSERVED):
            traffic.avoid(self._fleet, endpoint, None, now_s, trial=ticket.trial)
        elif point is not FailurePoint.LOCAL:
            traffic.failed(self._fleet, endpoint, reason, now_s, trial=ticket.trial)
        ticket.trial = ticket.trial and point is FailurePoint.LOCAL  # not sent, so `_end` gives the trial back
        self._end(ticket, now_s, f"failed ({point.value}): {reason}", served=False)
        self._counts["failed"] += 1
        self._tell_policy(LifecycleEventKind.FAILED, ticket, now_s)
        self._metrics.attempt_failures.add(1.0, (ticket.candidate.id, point.value))

    def cancelled(self, ticket: Ticket, now_s: float, outcome: str = "cancelled") -> None:
        """Record that the client left, or the request its worker for another one: it counts against no worker."""
        if ticket.ended:
            return
        decodes = ticket.reservation.stage is ReservationStage.DECODE and not ticket.received
        self._end(ticket, now_s, outcome, served=decodes)
        self._counts["cancelled"] += 1
        self._tell_policy(LifecycleEventKind.FAILED, ticket, now_s)

    def prefill_expected(self, ticket: Ticket, now_s: float) -> None:
        """End the prefill of an answer that passes elsewhere, because its predicted time has passed.

        Nothing is learned from it. Requests that the policy holds until then are offered.
        """
        if not ticket.ended:
            ticket.load.account.prefilled(ticket.reservation, now_s)
            self._tell_prefills_done(ticket)

    def released(self, ticket: Ticket, now_s: float) -> None:
        """Record that an answer that passes elsewhere has ended, as far as predictions and load reports tell.

        The worker has answered its probes meanwhile, which ends a trial, too. No speed or length is learned.
        """
        if ticket.ended:
            return
        if ticket.trial and ticket.candidate.endpoint.state is WorkerState.HALF_OPEN:
            traffic.succeeded(self._fleet, ticket.candidate.endpoint, trial=True, complete=True)
            ticket.trial = False
        if ticket.request.prompt is not None and ticket.candidate.live:
            slot = self._residency.slot(ticket.candidate.slot)
            slot.finished(ticket.request.prompt, None, None, ticket_id=ticket.id)
        self._end(ticket, now_s, "released by prediction", served=True)
        self._counts["finished"] += 1
        self._tell_policy(LifecycleEventKind.FINISHED, ticket, now_s)

    def moved(self, ticket: Ticket, now_s: float, to: str) -> None:
        """Record that another endpoint got the request, which counts against no worker."""
        if not ticket.ended:
            self._end(ticket, now_s, f"served by {to}", served=False)
            self._counts["cancelled"] += 1
            self._tell_policy(LifecycleEventKind.FAILED, ticket, now_s)

    def not_handed_over(self, ticket: Ticket, now_s: float, reason: str) -> None:
        """Record that a worker answered without the KV cache that another one should have handed over.

        The fault may be the other worker's, so it counts against neither.
        """
        if ticket.ended:
            return
        self._end(ticket, now_s, f"no KV handover: {reason}", served=False)
        self._counts["failed"] += 1
        self._tell_policy(LifecycleEventKind.FAILED, ticket, now_s)

    def generated_tokens(self, ticket: Ticket, now_s: float) -> int:
        """Return the output tokens that the worker has generated by now at the mean speed; 0 while that is unknown.

        Where the first token was not visible, the prefill counts, too.
        """
        token_s, decode_s = self.output_lengths.decode_s(1.0), ticket.decode_s(now_s)
        spent_s = now_s - ticket.reservation.at_s if decode_s is None else decode_s
        return int(spent_s / token_s) if token_s > 0.0 else 0

    def statistics(self) -> dict[str, int]:
        return self._comparisons.statistics()

    def _succeeded(self, ticket: Ticket, now_s: float, *, complete: bool) -> None:
        endpoint = ticket.candidate.endpoint
        endpoint.evidence.progressed(now_s)
        traffic.succeeded(self._fleet, endpoint, trial=ticket.trial, complete=complete)
        ticket.trial = False
        if ticket.suspect is not None:
            # This worker serves the request, so the error was a fault of the other worker and not of the request.
            (endpoint, reason), ticket.suspect = ticket.suspect, None
            traffic.failed(self._fleet, endpoint, reason, now_s, trial=False)

    def _end(self, ticket: Ticket, now_s: float, outcome: str, *, served: bool) -> None:
        """Release the ticket's load, blocks and trial. `served`: the request has been prefilled."""
        ticket.ended = True
        prefilling = ticket.reservation.stage is ReservationStage.PREFILL
        cached = served and ticket.residency in (Residency.EXACT, Residency.APPROXIMATE)
        self._loads.released(ticket.load, ticket.reservation, ticket.view.model, now_s, cached=cached)
        ticket.record.close(outcome, now_s)
        if ticket.request.prompt is not None and ticket.candidate.live:
            self._residency.slot(ticket.candidate.slot).release(ticket.id)
        if ticket.trial:
            ticket.trial = False
            traffic.trial_given_up(self._fleet, ticket.candidate.endpoint)
        if prefilling:
            self._tell_prefills_done(ticket)
        for listener in self.on_room:
            listener(ticket)

    def _tell_prefills_done(self, ticket: Ticket) -> None:
        if not ticket.load.account.queue:
            for listener in self.on_prefills_done:
                listener(ticket.candidate.id)

    def _tell_policy(
        self,
        kind: LifecycleEventKind,
        ticket: Ticket,
        now_s: float,
        cached_tokens: int | None = None,
    ) -> None:
        if self._policies.observes:
            output_tokens = ticket.output_tokens if kind is LifecycleEventKind.FINISHED else None
            self._policies.observe(
                LifecycleEvent(
                    kind, ticket.view, ticket.candidate.id, now_s, cached_tokens, output_tokens=output_tokens
                )
            )


def _generated(ticket: Ticket, usage: Usage) -> int | None:
    """Return the number of tokens of the answer; None if it is not known.

    It is the reported number. The events of a stream without one count as many tokens each as in the streams of the
    worker that reported it. Without any of these they say nothing, since an event may hold many tokens or none.
    """
    ratio, tokens = ticket.load.tokens_per_event, usage.completion_tokens
    if tokens is None:
        return ticket.load.streamed_tokens(ticket.events) or None if ratio.weight else None
    if tokens > 0 and ticket.events > 0:
        ratio.observe(tokens / ticket.events)
    return tokens
