"""The dispatcher: it chooses a worker for each request, and follows the request to its end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple, Protocol

from policies.view import (
    Decision,
    FleetView,
    LifecycleEvent,
    LifecycleEventKind,
    Policy,
    RequestView,
    Residency,
    WorkerId,
    WorkerView,
)
from router.config.model import RetriesConfig
from router.errors import ErrorKind, RequestError
from router.placement.comparison import ComparisonObserver, Comparisons, prediction
from router.placement.decisions import Action, DecisionLog, DecisionRecord, Explanation
from router.placement.endpoints import Candidate
from router.placement.fleet import Fleet
from router.placement.fleet_load import WorkerLoads
from router.placement.ledger import LoadReservation, ReservationStage
from router.placement.lifecycle_events import FailurePoint, Request, Usage
from router.placement.output_length import OutputLengths
from router.placement.policy_runner import PolicyRunner
from router.placement.residency_source import ResidencySource
from router.placement.retry_budget import RefusalObserver, RetryBudget, follow, longest, tried
from router.placement.selection import Selection, below_concurrency_limit, computed, exclusions, select, trial_first
from router.placement.shared_load import SharedLedger
from router.placement.tickets import Held, Queued, Reject, Ticket, gave_up
from router.placement.views import Found, ViewBuilder
from router.residency.difference import Difference
from router.residency.view import Match

__all__ = ["DispatchObserver", "Dispatcher", "Held", "Queued", "Reject", "Ticket"]


LONGEST_HOLD_S = 60.0
"""The longest that any policy can hold a request, over all decisions."""


class DispatchObserver(ComparisonObserver, RefusalObserver, Protocol):
    """Receives the dispatcher's actions, for metrics and logs. Must not raise."""

    def decided(self, ticket: Ticket) -> None:
        """An attempt was placed."""

    def rejected(self, request: Request, error: RequestError) -> None:
        """A request was rejected, at once or after its last attempt."""

    def failed(self, ticket: Ticket, point: FailurePoint, reason: str) -> None:
        """An attempt failed."""

    def policy_failed(self, policy: str, reason: str, first: bool) -> None:
        """`policy` raised or gave an invalid answer. `first`: for the first time since the policy was adopted."""


class _Decided(NamedTuple):
    selection: Selection
    view: RequestView
    fleet: FleetView
    found: Found | None
    decision: Decision


class Dispatcher:
    """Choose a worker for each request, reserve its load in the same step, and follow its lifecycle events.

    Any event may come late, twice or out of order. A ticket's load is released exactly once.
    """

    def __init__(
        self,
        fleet: Fleet,
        residency: ResidencySource,
        policy: Policy,
        *,
        policy_name: str,
        policy_params: Mapping[str, Any] | None = None,
        decisions_kept: int = 1_000,
        observer: DispatchObserver | None = None,
        retries: RetriesConfig | None = None,
        max_requests_per_worker: int = 0,
        ledger: SharedLedger | None = None,
    ) -> None:
        self._retry_budget = RetryBudget(retries, observer)
        self._max_per_worker = max_requests_per_worker
        self._fleet = fleet
        self._residency = residency
        failed = observer.policy_failed if observer is not None else None
        self._runner = PolicyRunner(policy, policy_name, policy_params or {}, failed)
        self._observer = observer
        self._loads = WorkerLoads(ledger)
        self._output_lengths = OutputLengths()
        self._view_builder = ViewBuilder(self._loads, residency, self._output_lengths)
        self._log = DecisionLog(decisions_kept)
        self._comparisons = Comparisons(observer)
        self.on_prefills_done: list[Callable[[WorkerId], None]] = []
        """Called when a worker has no reserved prefill left. Callbacks must not dispatch."""
        self._ids = itertools.count(1)
        self._counts = dict.fromkeys(
            ("dispatched", "queued", "rejected", "retried", "finished", "cancelled", "failed"), 0
        )
        fleet.on_load.append(self._loads.load_reported)

    @property
    def policy_name(self) -> str:
        """Name of the policy in force."""
        return self._runner.name

    @property
    def policy_params(self) -> Mapping[str, Any]:
        """The parameters that the policy was built with."""
        return self._runner.params

    def policy_statistics(self) -> dict[str, Any]:
        """Return the statistics that the policy reports about itself."""
        return self._runner.shown()

    def set_policy(self, policy: Policy, name: str, params: Mapping[str, Any]) -> None:
        """Use `policy` from the next decision on."""
        self._runner.adopt(policy, name, params)

    # decisions

    def dispatch(
        self, request: Request, now_s: float, *, may_hold: bool = False, within: Container[str] | None = None
    ) -> Ticket | Held | Queued | Reject:
        """Choose a candidate and reserve the request's load there, in one step.

        With `may_hold` the policy may hold the request instead, provided that its prompt has a known and acceptable
        length: holding other requests gains nothing. `within` limits the endpoints.
        """
        selection = self._select(request, (), now_s, within)
        if isinstance(selection, Selection):
            decided = self._decide(request, selection, now_s)
            held = _hold(request, selection, decided.decision, now_s) if may_hold else None
            return self._place(request, decided, now_s, attempt=1) if held is None else held
        if isinstance(selection, Queued):
            self._counts["queued"] += 1
            return selection
        if selection.error.kind is ErrorKind.MODEL_NOT_FOUND and request.model is not None:
            self._fleet.unknown_model(request.model)
        return self._reject(request, selection)

    def retry(
        self,
        ticket: Ticket,
        point: FailurePoint,
        now_s: float,
        reason: str,
        retry_after_s: float | None = None,
        *,
        within: Container[str] | None = None,
    ) -> Ticket | Reject:
        """Place the request on another worker after a failed attempt of which the client has seen nothing, or give up.

        With the usual three attempts there are up to two alternatives after `CONNECT`, `REFUSED` and `UNSERVED`, one
        after `SENT` and `ANSWERED`, and none after `STREAM`. There is none for a ticket that has ended (for example
        because its client left), and none beyond the retry budget. A retry after a failed connection costs no budget,
        since no worker spent work on it. `within` limits the endpoints.
        """
        if ticket.ended:
            return gave_up(point, reason, retry_after_s)
        self.failed(ticket, point, now_s, reason, retry_after_s)
        refusal_s = longest(ticket.refusal_s, retry_after_s)
        selection = self._alternatives(ticket, point, now_s, within)
        if (
            selection is not None
            and point is not FailurePoint.CONNECT
            and not self._retry_budget.pay(self._requests, now_s)
        ):
            selection = None
        if selection is None:
            return self._reject(ticket.request, gave_up(point, reason, refusal_s))
        again = self._place(ticket.request, self._decide(ticket.request, selection, now_s), now_s, ticket.attempt + 1)
        follow(ticket, again, point, refusal_s)
        if point is FailurePoint.ANSWERED:
            again.suspect = (ticket.candidate.endpoint, reason)
        self._counts["retried"] += 1
        return again

    def has_alternative(
        self, ticket: Ticket, point: FailurePoint, now_s: float, *, within: Container[str] | None = None
    ) -> bool:
        """Return whether `retry` would find a ready worker (not only a half-open one) within the retry budget."""
        if point is not FailurePoint.CONNECT and not self._retry_budget.affords(self._requests, now_s):
            return False
        selection = None if ticket.ended else self._alternatives(ticket, point, now_s, within)
        return selection is not None and selection.ready

    def explain(self, request: Request, now_s: float) -> Explanation:
        """Return the decision that the request would get now, without changing any state."""
        allowed = select(self._fleet, request, (), now_s)
        selection = self._below_limit(allowed)
        excluded = exclusions(self._fleet, request, allowed, now_s)
        if isinstance(allowed, Selection):
            why = f"its requests have reached limits.max_requests_per_worker ({self._max_per_worker})"
            below = selection.candidates if isinstance(selection, Selection) else ()
            excluded |= {candidate.id: why for candidate in allowed.candidates if candidate not in below}
        name = self._runner.name
        if not isinstance(selection, Selection):
            seen = self._view_builder.request_view(request, now_s)
            queued = isinstance(selection, Queued)
            reason = selection.reason if isinstance(selection, Queued) else selection.error.message
            return Explanation(seen, name, None, "queue" if queued else "reject", 0.0, reason, None, None, excluded)
        view, fleet, _ = self._view_builder.build(request, selection.candidates, now_s)
        decision = trial_first(self._runner.explain(view, fleet), selection)
        held = _hold(request, selection, decision, now_s)
        action: Action = "dispatch" if held is None else "hold"
        hold_s = 0.0 if held is None else held.until_s - now_s
        return Explanation(view, name, decision.ranked[0], action, hold_s, decision.reason, fleet, decision, excluded)

    def views(self, now_s: float) -> tuple[WorkerView, ...]:
        """Return the views of a one-token prompt for every candidate of the fleet, whatever its state."""
        return self._loads.views(self._fleet.candidates, None, 1, now_s)

    def decisions(self, limit: int) -> list[DecisionRecord]:
        """Return the latest decisions, newest first."""
        return self._log.latest(limit)

    # lifecycle events

    def first_token(self, ticket: Ticket, now_s: float) -> None:
        """Record the first event of a stream.

        Do not call it for whole-body responses, whose first byte does not mark the end of the prefill: set
        `Request.stream` to False and call `finished`.
        """
        if ticket.ended or not ticket.load.account.prefilled(ticket.reservation, now_s):
            return
        ticket.record.ttft_s = now_s - ticket.reservation.at_s
        ticket.work_done = ticket.load.account.work_done(now_s)
        if ticket.situation is not None:
            self._loads.observe(ticket.load, ticket.situation, ticket.record.ttft_s, now_s)
        self._succeeded(ticket, now_s, complete=False)
        if ticket.request.prompt is not None and ticket.candidate.live:
            self._residency.first_token(ticket.candidate.slot, ticket.id)
        self._tell_policy(LifecycleEventKind.FIRST_TOKEN, ticket, now_s)
        self._tell_prefills_done(ticket)

    def progress(self, ticket: Ticket, output_tokens: int) -> None:
        """Record that the stream has produced `output_tokens` in total."""
        ticket.load.account.progressed(ticket.reservation, output_tokens)

    def finished(self, ticket: Ticket, usage: Usage, now_s: float, *, status: int = 200) -> None:
        """Record a complete answer. A 4xx is complete, too, but nothing was prefilled for it."""
        if ticket.ended:
            return
        served = status < 400
        usage = self._comparisons.completed(ticket, usage)
        self._succeeded(ticket, now_s, complete=True)
        difference = None
        if served and ticket.request.prompt is not None and ticket.candidate.live:
            difference = self._residency.finished(
                ticket.candidate.slot,
                ticket.request.prompt,
                _generated(ticket, usage),
                usage.cached_tokens if ticket.request.tells_cached else None,
                ticket_id=ticket.id,
            )
        if served:
            self._comparisons.compare(ticket, usage, difference)
            decode_s, generated = ticket.decode_s(now_s), _generated(ticket, usage)
            self._output_lengths.observe(ticket.request, decode_s, generated)
            if decode_s is not None and ticket.work_done is not None:
                self._loads.decoded(ticket.load, ticket.work_done, generated, decode_s, now_s)
        self._end(ticket, now_s, "finished" if served else f"finished with status {status}", served=served)
        self._counts["finished"] += 1
        self._tell_policy(LifecycleEventKind.FINISHED, ticket, now_s, usage.cached_tokens)

    def explained(self, ticket_id: int, difference: Difference) -> None:
        """Record the explanation of a pending difference (`ResidencyMap.on_settled`)."""
        self._comparisons.explained(ticket_id, difference)

    def failed(
        self, ticket: Ticket, point: FailurePoint, now_s: float, reason: str, retry_after_s: float | None = None
    ) -> None:
        """Record that the attempt failed and is not retried. `retry` calls this itself."""
        if ticket.ended:
            return
        endpoint = ticket.candidate.endpoint
        if point is FailurePoint.REFUSED:
            self._fleet.traffic_refused(endpoint, retry_after_s, now_s, trial=ticket.trial)
        elif point in (FailurePoint.ANSWERED, FailurePoint.UNSERVED):
            self._fleet.traffic_doubtful(endpoint, now_s, trial=ticket.trial)
        elif point is not FailurePoint.LOCAL:
            self._fleet.traffic_failed(endpoint, reason, now_s, trial=ticket.trial)
        ticket.trial = ticket.trial and point is FailurePoint.LOCAL  # not sent, so `_end` gives the trial back
        self._end(ticket, now_s, f"failed ({point.value}): {reason}", served=False)
        self._counts["failed"] += 1
        self._tell_policy(LifecycleEventKind.FAILED, ticket, now_s)
        if self._observer is not None:
            self._observer.failed(ticket, point, reason)

    def cancelled(self, ticket: Ticket, now_s: float) -> None:
        """Record that the client left, which counts against no worker."""
        if ticket.ended:
            return
        self._end(ticket, now_s, "cancelled", served=ticket.reservation.stage is ReservationStage.DECODE)
        self._counts["cancelled"] += 1
        self._tell_policy(LifecycleEventKind.FAILED, ticket, now_s)

    def statistics(self) -> dict[str, Any]:
        """Return counters, the policy's behaviour and each worker's load."""
        return {
            **self._counts,
            **self._comparisons.statistics(),
            **self._runner.statistics(),
            **self._retry_budget.statistics(),
            "workers": self._loads.statistics(self._fleet.candidates),
        }

    # internal

    def _decide(self, request: Request, selection: Selection, now_s: float) -> _Decided:
        view, fleet, found = self._view_builder.build(request, selection.candidates, now_s)
        self._loads.arrived(view.block_hashes, now_s)
        decision = trial_first(self._runner.decide(view, fleet), selection)
        return _Decided(selection, view, fleet, found, decision)

    def _place(self, request: Request, decided: _Decided, now_s: float, attempt: int) -> Ticket:
        selection, view, fleet, found, decision = decided
        place = fleet.place_of(decision.ranked[0])
        assert place is not None, "the policy runner has checked it"
        candidate, worker = selection.candidates[place], fleet.worker(place)
        predicted = prediction(request, candidate, worker)
        record = self._record(view, fleet, decision, worker, attempt, predicted)
        match = None if found is None else found.match(candidate.slot, place)
        ticket = self._reserve(request, candidate, worker, record, now_s, match)
        if selection.trial is not None:
            ticket.trial = True
            self._fleet.trial_started(selection.trial, now_s)
        self._counts["dispatched"] += 1
        if self._runner.observes:
            self._runner.observe(
                LifecycleEvent(LifecycleEventKind.RESERVED, view, candidate.id, now_s, placed=worker, fleet=fleet)
            )
        if self._observer is not None:
            self._observer.decided(ticket)
        return ticket

    def _select(
        self, request: Request, tried: tuple[str, ...], now_s: float, within: Container[str] | None
    ) -> Selection | Queued | Reject:
        """Return the candidates that may take the request now and are below the concurrency limit."""
        return self._below_limit(select(self._fleet, request, tried, now_s, within))

    def _below_limit(self, selection: Selection | Queued | Reject) -> Selection | Queued | Reject:
        if self._max_per_worker and isinstance(selection, Selection):
            return below_concurrency_limit(selection, self._max_per_worker, self._running)
        return selection

    def _running(self, candidate: Candidate) -> int:
        return self._loads.of(candidate).reserved().running_requests

    def _alternatives(
        self, ticket: Ticket, point: FailurePoint, now_s: float, within: Container[str] | None = None
    ) -> Selection | None:
        """Return the candidates that may take over from a ticket that fails at `point`; None to give up."""
        if self._retry_budget.exhausted(ticket, point):
            return None
        selection = self._select(ticket.request, tried(ticket), now_s, within)
        return selection if isinstance(selection, Selection) else None

    @property
    def _requests(self) -> int:
        """Requests placed so far, each counted once."""
        return self._counts["dispatched"] - self._counts["retried"]

    def _reserve(
        self,
        request: Request,
        candidate: Candidate,
        view: WorkerView,
        record: DecisionRecord,
        now_s: float,
        found: Match | None,
    ) -> Ticket:
        load = self._loads.of(candidate)
        prompt_tokens = view.cached_tokens + view.uncached_tokens
        reservation = LoadReservation(
            view.uncached_tokens,
            prompt_tokens,
            now_s,
            streams=request.stream,
            hashes=record.request.block_hashes,
            block_tokens=record.request.block_tokens,
        )
        ticket = Ticket(request, record.request, load, reservation, record)
        ticket.residency = view.residency
        if _teaches(request, view):
            ticket.situation = load.situation(
                view.uncached_tokens, prompt_tokens, now_s, fits=_fits_cache(view, prompt_tokens)
            )
        load.reserve(reservation, now_s)
        if request.prompt is not None:
            predicted, recomputes = ticket.predicted_cached_tokens, not request.reads_cache
            self._residency.reserve(
                candidate.slot, request.prompt, ticket.id, predicted, recomputes=recomputes, found=found
            )
        return ticket

    def _record(
        self,
        request: RequestView,
        fleet: FleetView,
        decision: Decision,
        view: WorkerView,
        attempt: int,
        predicted_cached_tokens: int | None,
    ) -> DecisionRecord:
        record = DecisionRecord(
            at_s=fleet.now_s,
            ticket_id=next(self._ids),
            attempt=attempt,
            policy=self._runner.name,
            request=request,
            fleet=fleet,
            decision=decision,
            worker=view.id,
            residency=view.residency,
            predicted_cached_tokens=predicted_cached_tokens,
        )
        self._log.add(record)
        return record

    def _succeeded(self, ticket: Ticket, now_s: float, *, complete: bool) -> None:
        self._fleet.traffic_succeeded(ticket.candidate.endpoint, trial=ticket.trial, complete=complete)
        ticket.trial = False
        if ticket.suspect is not None:
            # This worker serves the request, so the error was a fault of the other worker and not of the request.
            (endpoint, reason), ticket.suspect = ticket.suspect, None
            self._fleet.traffic_failed(endpoint, reason, now_s, trial=False)

    def _end(self, ticket: Ticket, now_s: float, outcome: str, *, served: bool) -> None:
        """Release the ticket's load, blocks and trial. `served`: the request has been prefilled."""
        ticket.ended = True
        prefilling = ticket.reservation.stage is ReservationStage.PREFILL
        cached = served and ticket.residency in (Residency.EXACT, Residency.APPROXIMATE)
        self._loads.released(ticket.load, ticket.reservation, ticket.view.model, now_s, cached=cached)
        ticket.record.close(outcome, now_s)
        if ticket.request.prompt is not None and ticket.candidate.live:
            self._residency.release(ticket.candidate.slot, ticket.id)
        if ticket.trial:
            ticket.trial = False
            self._fleet.trial_given_up(ticket.candidate.endpoint)
        if prefilling:
            self._tell_prefills_done(ticket)

    def _tell_prefills_done(self, ticket: Ticket) -> None:
        if not ticket.load.account.queue:
            for listener in self.on_prefills_done:
                listener(ticket.candidate.id)

    def _reject(self, request: Request, reject: Reject) -> Reject:
        self._counts["rejected"] += 1
        if self._observer is not None:
            self._observer.rejected(request, reject.error)
        return reject

    def _tell_policy(
        self,
        kind: LifecycleEventKind,
        ticket: Ticket,
        now_s: float,
        cached_tokens: int | None = None,
    ) -> None:
        if self._runner.observes:
            self._runner.observe(LifecycleEvent(kind, ticket.view, ticket.candidate.id, now_s, cached_tokens))


def _hold(request: Request, selection: Selection, decision: Decision, now_s: float) -> Held | None:
    """Return the hold that the policy asks for, or None if the request goes to a worker without delay."""
    until_s = min(now_s + decision.hold_s, request.arrived_s + LONGEST_HOLD_S)
    first = decision.ranked[0]
    if until_s > now_s and computed(request, selection, first):
        return Held(first if decision.until_prefills_done else None, until_s)
    return None


def _teaches(request: Request, view: WorkerView) -> bool:
    """Return whether the speed estimate can learn from the time to this request's first token."""
    prompt = request.prompt
    known = prompt is not None and not prompt.multiple and view.residency is not Residency.UNKNOWN
    return known and request.stream


def _fits_cache(view: WorkerView, prompt_tokens: int) -> bool:
    """Return whether the prompt fits into the KV cache beside the running requests; True if its size is unknown."""
    return not view.kv_capacity_tokens or view.kv_tokens + prompt_tokens <= view.kv_capacity_tokens


def _generated(ticket: Ticket, usage: Usage) -> int | None:
    """Return the number of tokens of the answer: as reported, or else the number of events, since vLLM sends one token
    per event."""
    return ticket.reservation.output_tokens or None if usage.completion_tokens is None else usage.completion_tokens
