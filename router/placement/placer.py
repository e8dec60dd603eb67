"""Place a request: ask the policy, and reserve the request's load and blocks on the worker that it chooses."""

from __future__ import annotations

import itertools

from policies.view import LifecycleEvent, LifecycleEventKind, Residency, WorkerView
from router.placement.comparison import prediction
from router.placement.decision_log.decisions import UNDECIDED, DecisionLog, DecisionRecord
from router.placement.defer import Defer, run_now
from router.placement.fleet.endpoints import Candidate
from router.placement.load.fleet_load import WorkerLoads
from router.placement.load.running import LoadReservation
from router.placement.load.views import ViewBuilder, match_of
from router.placement.metrics import PlacementMetrics
from router.placement.named_policies import NamedPolicies
from router.placement.request import Request
from router.placement.selection import Selection, trial_first
from router.placement.ticket_life import Tickets
from router.placement.tickets import Counts, Ticket


class Placer:
    """Decide where a request goes, and carry the decision out in one step."""

    def __init__(
        self,
        tickets: Tickets,
        loads: WorkerLoads,
        policies: NamedPolicies,
        view_builder: ViewBuilder,
        log: DecisionLog,
        metrics: PlacementMetrics,
        counts: Counts,
    ) -> None:
        self._tickets = tickets
        self._loads = loads
        self._policies = policies
        self._view_builder = view_builder
        self._log = log
        self._metrics = metrics
        self._counts = counts
        self._ids = itertools.count(1)
        self.later: Defer = run_now
        """Takes the notes of a placement."""

    def see(self, request: Request, selection: Selection, now_s: float) -> DecisionRecord:
        """Return what is known of the selected candidates, without a decision."""
        view, fleet, found = self._view_builder.build(request, selection.candidates, now_s)
        policy = self._policies.of(request.policy).name
        return DecisionRecord(
            now_s,
            request.route,
            policy,
            request.counted,
            view,
            fleet,
            UNDECIDED,
            candidates=selection.candidates,
            trial=selection.trial,
            found=found,
        )

    def decide(self, request: Request, selection: Selection, now_s: float) -> DecisionRecord:
        """Return the policy's decision among the selected candidates. Nothing is reserved yet."""
        seen = self.see(request, selection, now_s)
        self._loads.arrived(seen.request.block_hashes, now_s)
        seen.decision = trial_first(self._policies.decide(request.policy, seen.request, seen.fleet), selection.trial)
        return seen

    def place(
        self,
        request: Request,
        record: DecisionRecord,
        now_s: float,
        attempt: int,
        *,
        by_policy: bool = True,
        after: WorkerView | None = None,
    ) -> Ticket:
        """Reserve the request's load and blocks on the first worker of the ranking, and complete the record.

        `by_policy`: the policy chose the worker, so shadow policies decide, too. `after` is the worker as it will be
        once the KV cache has come from another one. Then its load is reserved, and its blocks with `Tickets.arrived`.
        The record shows what the policy saw; without one, `after`. Events show policies what a policy saw alone,
        because a replay knows no other fleet.
        """
        view, fleet, found, trial = record.request, record.fleet, record.found, record.trial
        row = fleet.row_of(record.decision.ranked[0])
        assert row is not None, "the policy runner has checked it"
        candidate, seen = record.candidates[row], fleet.worker(row)
        worker = seen if after is None else after
        if after is not None and not by_policy:
            record.fleet = fleet.with_facts((*fleet.workers[:row], after, *fleet.workers[row + 1 :]), None)
        record.by_policy = by_policy and trial is None
        record.carried_out(next(self._ids), attempt, worker, prediction(request, candidate, worker))
        ticket = self._reserve(request, candidate, worker, record, now_s, arrives=after is not None)
        self._counts["dispatched"] += 1
        if after is None:
            self._tickets.reserve_blocks(ticket, match_of(found, candidate.slot, row))
        else:
            ticket.residency = seen.residency
        if trial is not None:
            ticket.trial = True
            trial.health.trial_running = True
        if attempt == 1 and by_policy:
            ticket.shadow = self._policies.shadow(request.route, view, fleet, record.decision)
        if self._policies.observes:
            self._policies.observe(
                LifecycleEvent(
                    LifecycleEventKind.RESERVED,
                    view,
                    candidate.id,
                    now_s,
                    placed=seen if by_policy else None,
                    fleet=fleet if by_policy else None,
                )
            )
        self.later(self._note, ticket)
        if attempt == 1 and by_policy and after is None:
            self.later(self._tickets.placed, ticket)
        return ticket

    def _note(self, ticket: Ticket) -> None:
        """Record a placement, after shadow policies and events have made their views, which the log counts."""
        self._log.add(ticket.record)
        metrics, worker, record = self._metrics, ticket.candidate.id, ticket.record
        metrics.decisions.add(1.0, (worker, ticket.residency))
        metrics.prompt_tokens.add(ticket.request.prompt_tokens, (worker,))
        metrics.route_decisions.add(1.0, (record.route, record.policy))

    def _reserve(
        self,
        request: Request,
        candidate: Candidate,
        view: WorkerView,
        record: DecisionRecord,
        now_s: float,
        *,
        arrives: bool,
    ) -> Ticket:
        load = self._loads.of(candidate)
        prompt_tokens, loaded_tokens = view.cached_tokens + view.uncached_tokens, _loaded_tokens(request, view)
        reservation = LoadReservation(
            view.uncached_tokens - loaded_tokens,
            prompt_tokens,
            now_s,
            streams=request.stream,
            arrives=arrives,
            hashes=record.request.block_hashes,
            block_tokens=record.request.block_tokens,
        )
        ticket = Ticket(request, record.request, load, reservation, record)
        ticket.residency = view.residency
        if not loaded_tokens and _teaches(request, view):
            ticket.situation = load.situation(
                view.uncached_tokens, prompt_tokens, now_s, fits=_fits_cache(view, prompt_tokens)
            )
        load.reserve(reservation, now_s)
        if arrives and not request.stream:
            ticket.received = True  # nothing will show when its KV cache has come
            load.account.prefilled(reservation, now_s)
        return ticket


def _teaches(request: Request, view: WorkerView) -> bool:
    """Return whether the speed estimate can learn from the time to this request's first token."""
    prompt = request.prompt
    known = prompt is not None and not prompt.multiple and view.residency is not Residency.UNKNOWN
    return known and request.stream


def _loaded_tokens(request: Request, view: WorkerView) -> int:
    """Return the tokens of the prompt that the worker loads from a slower tier of its own, and does not compute."""
    tiers = view.cached_tokens_by_tier
    return 0 if tiers is None or not request.reads_cache else max(0, sum(tiers.values()) - view.cached_tokens)


def _fits_cache(view: WorkerView, prompt_tokens: int) -> bool:
    """Return whether the prompt fits into the KV cache beside the running requests; True if its size is unknown."""
    return not view.kv_capacity_tokens or view.kv_tokens + prompt_tokens <= view.kv_capacity_tokens
