from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Any

from backends.worker import LoadReport
from policies.spec import PolicySpec
from policies.view import Decision, Policy, WorkerId, WorkerView
from router.config.model import HandoverConfig, RetriesConfig
from router.errors import ErrorKind
from router.metrics.registry import Registry
from router.placement.decision_log.decisions import Action, Asked, DecisionLog, DecisionRecord, Explanation
from router.placement.decision_log.recorder import Recorder
from router.placement.decision_log.what_if import WhatIfs
from router.placement.defer import Defer, run_now
from router.placement.fleet.endpoints import Candidate
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.residency_source import ResidencySource
from router.placement.handover.explained import ExplainedHandover
from router.placement.handover.links import Link, LinkSpeed, Transfer
from router.placement.handover.planner import HandoverPlanner, HandoverTickets, PlannedHandover, WorkerChoices
from router.placement.handover.pulls import PlannedPull, PullPlanner
from router.placement.learning.speed import SpeedSource
from router.placement.load.fleet_load import WorkerLoads
from router.placement.load.pinned_blocks import PinnedBlocks
from router.placement.load.shared_load import SharedLedger
from router.placement.load.views import ViewBuilder
from router.placement.load.worker_load import WorkerLoad
from router.placement.metrics import PlacementMetrics
from router.placement.named_policies import NamedPolicies
from router.placement.placer import PendingPlacement, Placer
from router.placement.policies.policy_runner import Failed, PolicyRunner
from router.placement.policies.shadow import RouteShadows
from router.placement.request import FailurePoint, Request
from router.placement.retry_budget import FREE, RetryBudget, follow, longest, tried
from router.placement.selection import Selection, below_concurrency_limit, computed, exclusions, select, trial_first
from router.placement.ticket_life import TicketLife
from router.placement.tickets import Held, Queued, Reject, Ticket, gave_up, lacks_worker

__all__ = ["Dispatcher", "Held", "Queued", "Reject", "Ticket"]


LONGEST_HOLD_S = 60.0
"""The longest that any policy can hold a request, over all decisions."""


class Dispatcher(TicketLife):
    """Choose a worker for each request, reserve its load in the same step, and follow its lifecycle events.

    A ticket's load is released exactly once. `ledger` is shared with other processes; `alone` says that no gateway of
    another host uses the workers.
    """

    def __init__(
        self,
        fleet: Fleet,
        residency: ResidencySource,
        policy: Policy,
        *,
        spec: PolicySpec,
        decisions_kept: int = 1_000,
        registry: Registry | None = None,
        policy_failed: Failed | None = None,
        retries: RetriesConfig | None = None,
        max_requests_per_worker: int = 0,
        ledger: SharedLedger | None = None,
        alone: bool = True,
        named: Mapping[str, PolicyRunner] | None = None,
        shadows: Mapping[str, RouteShadows] | None = None,
        handover: HandoverConfig | None = None,
    ) -> None:
        metrics = PlacementMetrics(registry or Registry())
        self._runner = PolicyRunner(policy, spec, policy_failed)
        policies = NamedPolicies(self._runner, named or {}, shadows or {})
        handover = handover or HandoverConfig()
        loads = WorkerLoads(ledger, kv_moves=handover.connector is not None or handover.pulls is not None)
        super().__init__(fleet, residency, loads, policies, metrics, PinnedBlocks(handover, watches=alone))
        self._retry_budget = RetryBudget(retries, metrics.retries_refused)
        self._max_per_worker = max_requests_per_worker
        self._log = DecisionLog(decisions_kept)
        self.what_ifs = WhatIfs(self._log)
        self._view_builder = ViewBuilder(loads, residency, self._output_lengths)
        self._placer = Placer(fleet, residency, loads, policies, self._view_builder, self._log, metrics)
        self._later: Defer = run_now
        self._pulls = PullPlanner(handover, self._placer, residency)
        self._handovers = HandoverPlanner(handover, self._placer, self._view_builder, loads)
        fleet.on_load.append(self._loads.load_reported)
        if alone and handover.connector:
            fleet.on_load.append(self._look_for_stuck_blocks)

    @property
    def policy_spec(self) -> PolicySpec:
        return self._runner.spec

    def spec_of(self, policy: str) -> PolicySpec:
        return self._policies.of(policy).spec

    def policy_statistics(self) -> dict[str, Any]:
        return self._runner.shown()

    def set_policy(self, policy: Policy, spec: PolicySpec) -> None:
        self._runner.adopt(policy, spec)

    def use_policies(self, named: Mapping[str, PolicyRunner], shadows: Mapping[str, RouteShadows]) -> None:
        self._policies.adopt(named, shadows)

    def named_statistics(self) -> dict[str, Any]:
        """Return the behaviour of the further policies, the shadow policies and the decision log."""
        return self._policies.statistics()

    def record(self, recorder: Recorder) -> None:
        self._policies.recorder = recorder
        recorder.later = self._later
        self._view_builder.running_share = recorder.listening(self._loads.running_share)

    def defer_notes_with(self, later: Defer) -> None:
        """Take the notes of placements with `later`: the log of decisions, metrics, and the measured traffic."""
        self._later = self._placer.later = later
        if self._policies.recorder is not None:
            self._policies.recorder.later = later

    # decisions

    def dispatch(
        self,
        request: Request,
        now_s: float,
        *,
        may_hold: bool = False,
        may_wait: bool = False,
        within: Container[str] | None = None,
        decided: PendingPlacement | None = None,
    ) -> Ticket | Held | Queued | Reject:
        """Choose a candidate and reserve the request's load there, in one step.

        With `may_hold` the policy may hold the request instead, provided that its prompt has a known and acceptable
        length: holding other requests gains nothing. With `may_wait` it is queued, not rejected, while every candidate
        is at its limit of reserved requests. `within` limits the endpoints. `decided` is what the policy has decided
        just now (`plan_pull`), so that it is not asked twice.
        """
        selection = self._select(request, (), now_s, within) if decided is None else decided.selection
        if may_wait and isinstance(selection, Reject) and selection.at_limit:
            selection = Queued(selection.error.message, at_limit=True)
        if isinstance(selection, Selection):
            decided = self._placer.decide(request, selection, now_s) if decided is None else decided
            held = _hold(request, selection, decided.decision, now_s) if may_hold else None
            return self._place(request, decided, now_s, attempt=1) if held is None else held
        if isinstance(selection, Queued):
            self._counts["queued"] += 1
            return selection
        if selection.error.kind is ErrorKind.MODEL_NOT_FOUND and request.model is not None:
            self._fleet.unknown_model(request.model)
        return self._reject(selection)

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

        With the usual three attempts there are up to two alternatives after `CONNECT`, `REFUSED`, `UNSERVED` and
        `STOPPING`, one
        after `SENT` and `ANSWERED`, and none after `STREAM`. There is none for a ticket that has ended (for example
        because its client left), and none beyond the retry budget. A retry after `CONNECT` or `STOPPING` costs no
        budget, since no worker spent work on it. `within` limits the endpoints.
        """
        if ticket.ended:
            return gave_up(point, reason, retry_after_s)
        self.failed(ticket, point, now_s, reason, retry_after_s)
        refusal_s = longest(ticket.refusal_s, retry_after_s)
        selection = self._alternatives(ticket, point, now_s, within)
        if selection is not None and point not in FREE and not self._retry_budget.pay(self._requests, now_s):
            selection = None
        if selection is None:
            return self._reject(gave_up(point, reason, refusal_s))
        decided = self._placer.decide(ticket.request, selection, now_s)
        again = self._place(ticket.request, decided, now_s, ticket.attempt + 1)
        follow(ticket, again, point, refusal_s)
        if point is FailurePoint.ANSWERED:
            again.suspect = (ticket.candidate.endpoint, reason)
        self._counts["retried"] += 1
        return again

    def has_alternative(
        self, ticket: Ticket, point: FailurePoint, now_s: float, *, within: Container[str] | None = None
    ) -> bool:
        """Return whether `retry` would find a ready worker (not only a half-open one) within the retry budget."""
        if point not in FREE and not self._retry_budget.affords(self._requests, now_s):
            return False
        selection = None if ticket.ended else self._alternatives(ticket, point, now_s, within)
        return selection is not None and selection.ready

    # KV handover

    def plan_handover(
        self,
        request: Request,
        now_s: float,
        *,
        within: Container[str] | None = None,
        prefiller: str | None = None,
        even_if_dearer: bool = False,
    ) -> PlannedHandover | Queued | Reject | None:
        """Return the cheapest pair of workers for the request if it costs less than one worker; None if it does not.

        `prefiller` is the prefill worker that it must have at any cost, if that is ready. With `even_if_dearer` the
        pair may cost more. `Queued` and `Reject` say why no prefill worker can take it.
        """
        prefill = self._select(request, (), now_s, within, prefill=True)
        if not isinstance(prefill, Selection):
            return prefill
        named = tuple(one for one in prefill.candidates if one.endpoint.id == prefiller)
        alone = self._select(request, (), now_s, within)
        if not isinstance(alone, Selection):
            return None
        at_any_cost = even_if_dearer or bool(named)
        if named:
            prefill = Selection(named, prefill.trial if prefill.trial is named[0].endpoint else None)
        others = None if named else self._prefill_without_trial(request, prefill, now_s, within)
        return self._handovers.plan(request, WorkerChoices(prefill, others, alone), now_s, at_any_cost=at_any_cost)

    def prefillers(self, model: str | None) -> frozenset[str]:
        """Return the endpoints that may compute prompts of `model` for other workers, ready or not."""
        return frozenset(endpoint.id for endpoint in self._fleet.prefill_set(model).able)

    def hand_over(self, request: Request, planned: PlannedHandover, now_s: float) -> HandoverTickets:
        """Reserve the load of a planned pair, at the time of the plan.

        If the prefill worker reads a turn from another worker, `arrived` then records its blocks.
        """
        self._counts["dispatched"] += 2
        runner = self._policies.of(request.policy)
        tickets = self._handovers.reserve(request, planned, runner, now_s)
        self._later(self._note_traffic, tickets.decode)
        return tickets

    def retry_prefill(
        self,
        ticket: Ticket,
        point: FailurePoint,
        now_s: float,
        reason: str,
        retry_after_s: float | None = None,
        *,
        within: Container[str] | None = None,
        receiver: str | None = None,
    ) -> Ticket | None:
        """Release a failed prefill, and place it on another prefill worker; None if there is none within the budget.

        `receiver` is the endpoint that waits for the prompt's KV cache.
        """
        if ticket.ended:
            return None
        self.failed(ticket, point, now_s, reason, retry_after_s)
        request = ticket.request
        if self._retry_budget.exhausted(ticket, point):
            return None
        without = tried(ticket) if receiver is None else (*tried(ticket), receiver)
        selection = self._select(request, without, now_s, within, prefill=True)
        if not isinstance(selection, Selection) or selection.trial is not None:
            return None
        if point not in FREE and not self._retry_budget.pay(self._requests, now_s):
            return None
        again = self._handovers.again(ticket, selection, self._policies.of(request.policy), now_s)
        if again is None:
            return None
        follow(ticket, again, point, None)
        self._counts["dispatched"] += 1
        self._counts["retried"] += 1
        return again

    def transfer(self, sender: Ticket, receiver: Ticket, now_s: float) -> Transfer:
        """Begin to measure a transfer: the receiver's request is sent now."""
        return self._handovers.transfer(sender, receiver, now_s)

    def plan_pull(
        self,
        request: Request,
        now_s: float,
        *,
        within: Container[str] | None = None,
        even_if_dearer: bool = False,
    ) -> PlannedPull | PendingPlacement | None:
        """Return a pull for the request if it costs less than the policy's decision.

        Otherwise return that decision, for `dispatch`; None if the policy was not asked. `even_if_dearer`: return the
        pull by the policy's worker whatever it costs.
        """
        alone = self._select(request, (), now_s, within) if self._pulls.enabled else None
        if not isinstance(alone, Selection):
            return None
        able = self._fleet.candidate_set(request.model), self._fleet.prefill_set(request.model)
        sources = tuple(dict.fromkeys((*able[0].ready, *able[1].ready)))
        return self._pulls.plan(request, alone, sources, now_s, even_if_dearer=even_if_dearer)

    def pull(self, request: Request, planned: PlannedPull, now_s: float) -> Ticket:
        self._counts["dispatched"] += 1
        ticket = self._pulls.reserve(request, planned, now_s)
        self._later(self._note_traffic, ticket)
        return ticket

    def pull_begins(self, planned: PlannedPull, ticket: Ticket, now_s: float) -> Transfer:
        return self._pulls.transfer(planned, ticket, now_s)

    def arrived(self, ticket: Ticket) -> None:
        """Record that the prompt's KV cache has come from another worker: the answer has begun, before its
        `first_token`."""
        self._placer.arrived(ticket)

    def transferred(self, transfer: Transfer, now_s: float) -> None:
        """Learn from a transfer: the first event of a streamed answer arrived at `now_s`."""
        links = self._pulls.links if transfer.kind == "pull" else self._handovers.links
        links.observe(transfer, now_s)

    def link_speed(self, now_s: float) -> LinkSpeed:
        """Return the speed of a handover's link of which nothing is known: that of all links, or the settings'."""
        return self._handovers.links.fleet(now_s)

    def links(self, now_s: float) -> list[Link]:
        """Return the links over which KV cache has moved, as decisions see them now."""
        return self._handovers.links.known(now_s) + self._pulls.links.known(now_s)

    def run_plain(self, ticket: Ticket, reason: str, now_s: float) -> bool:
        """Release an attempt that did not get its KV cache. Return whether the request may run again without one."""
        self.not_handed_over(ticket, now_s, reason)
        return self._retry_budget.pay(self._requests, now_s)

    def explain(self, request: Request, now_s: float) -> Explanation:
        """Return the decision that the request would get now, without changing any state."""
        allowed = select(self._fleet, request, (), now_s)
        selection = self._below_limit(allowed)
        excluded = exclusions(self._fleet, request, allowed, now_s)
        if isinstance(allowed, Selection):
            why = f"its requests have reached limits.max_requests_per_worker ({self._max_per_worker})"
            below = selection.candidates if isinstance(selection, Selection) else ()
            excluded |= {candidate.id: why for candidate in allowed.candidates if candidate not in below}
        runner = self._policies.of(request.policy)
        asked = Asked(request.route, runner.name, runner.rule, request.counted)
        if not isinstance(selection, Selection):
            seen = self._view_builder.request_view(request, now_s)
            queued = isinstance(selection, Queued)
            reason = selection.reason if isinstance(selection, Queued) else selection.error.message
            action: Action = "queue" if queued else "reject"
            lacks = lacks_worker(selection)
            return Explanation(seen, asked, None, action, 0.0, reason, None, None, excluded, lacks)
        view, fleet, _ = self._view_builder.build(request, selection.candidates, now_s)
        decision = trial_first(runner.explain(view, fleet), selection)
        held = _hold(request, selection, decision, now_s)
        action = "dispatch" if held is None else "hold"
        hold_s = 0.0 if held is None else held.until_s - now_s
        return Explanation(view, asked, decision.ranked[0], action, hold_s, decision.reason, fleet, decision, excluded)

    def explain_handover(self, request: Request, now_s: float) -> ExplainedHandover:
        """Return whether two workers would share the request, and what that costs, without changing any state."""
        prefill = self._select(request, (), now_s, None, prefill=True)
        alone = self._select(request, (), now_s, None)
        if not isinstance(prefill, Selection):
            return ExplainedHandover(False, "no prefill worker can take it now")
        if not isinstance(alone, Selection):
            return ExplainedHandover(False, "no worker can take the whole request now")
        others = self._prefill_without_trial(request, prefill, now_s, None)
        return self._handovers.explain(request, WorkerChoices(prefill, others, alone), now_s)

    def shadows(self, route: str) -> RouteShadows | None:
        return self._policies.shadows_of(route)

    def expected_output_tokens(self, request: Request) -> int:
        tokens = request.max_tokens
        if tokens is None:
            tokens = math.ceil(self._output_lengths.expected_tokens(request))
        return max(0, tokens) * max(1, request.answers)

    def generated_tokens(self, ticket: Ticket, now_s: float) -> int:
        """Return the output tokens that the worker has generated by now at the mean speed; 0 while that is unknown.

        Where the first token was not visible, the prefill counts, too.
        """
        token_s, decode_s = self._output_lengths.decode_s(1.0), ticket.decode_s(now_s)
        spent_s = now_s - ticket.reservation.at_s if decode_s is None else decode_s
        return int(spent_s / token_s) if token_s > 0.0 else 0

    def views(self, now_s: float) -> tuple[WorkerView, ...]:
        """Return the views of a one-token prompt for every candidate of the fleet, whatever its state."""
        return self._loads.views(self._fleet.candidates, None, 1, now_s)

    def worker_load(self, candidate: Candidate) -> WorkerLoad:
        return self._loads.of(candidate)

    def speed_sources(self, now_s: float) -> dict[WorkerId, SpeedSource]:
        """Return where the speed comes from that estimates about each candidate use now."""
        return {candidate.id: self._loads.speed_source(candidate, now_s) for candidate in self._fleet.candidates}

    def decisions(self, limit: int, before: tuple[float, int] | None = None) -> list[DecisionRecord]:
        """Return the latest decisions, newest first; with `before`, those whose `place` is less."""
        return self._log.latest(limit, before)

    def statistics(self) -> dict[str, Any]:
        return {
            **self._counts,
            **self._comparisons.statistics(),
            **self._runner.statistics(),
            **self._policies.statistics(),
            "workers": self._loads.statistics(self._fleet.candidates),
        }

    # internal

    def _look_for_stuck_blocks(self, candidate: Candidate, report: LoadReport, now_s: float) -> None:
        self.pinned.reported(candidate, report, self._loads.of(candidate).reserved(), now_s)

    def _place(self, request: Request, decided: PendingPlacement, now_s: float, attempt: int) -> Ticket:
        self._counts["dispatched"] += 1
        ticket = self._placer.place(request, decided, now_s, attempt)
        if attempt == 1:
            self._later(self._note_traffic, ticket)
        return ticket

    def _note_traffic(self, ticket: Ticket) -> None:
        if self.traffic is not None:
            self.traffic.placed(ticket, ticket.record.fleet)

    def _select(
        self,
        request: Request,
        tried: tuple[str, ...],
        now_s: float,
        within: Container[str] | None = None,
        *,
        prefill: bool = False,
    ) -> Selection | Queued | Reject:
        """Return the candidates that may take the request now and are below the concurrency limit.

        With `prefill`: those that may compute its prompt for a decode worker.
        """
        return self._below_limit(select(self._fleet, request, tried, now_s, within, prefill=prefill))

    def _prefill_without_trial(
        self, request: Request, prefill: Selection, now_s: float, within: Container[str] | None
    ) -> Selection | None:
        """Return the prefill workers to use if the pair with the trial does not pay; None if there are none."""
        if prefill.trial is None:
            return None
        others = self._select(request, (prefill.trial.id,), now_s, within, prefill=True)
        return others if isinstance(others, Selection) else None

    def _below_limit(self, selection: Selection | Queued | Reject) -> Selection | Queued | Reject:
        if self._max_per_worker and isinstance(selection, Selection):
            return below_concurrency_limit(selection, self._max_per_worker, self._running)
        return selection

    def _running(self, candidate: Candidate) -> int:
        return self._loads.of(candidate).reserved().running_requests

    def _alternatives(
        self, ticket: Ticket, point: FailurePoint, now_s: float, within: Container[str] | None = None
    ) -> Selection | None:
        if self._retry_budget.exhausted(ticket, point):
            return None
        selection = self._select(ticket.request, tried(ticket), now_s, within)
        return selection if isinstance(selection, Selection) else None

    @property
    def _requests(self) -> int:
        return self._counts["dispatched"] - self._counts["retried"]

    def _reject(self, reject: Reject) -> Reject:
        self._counts["rejected"] += 1
        return reject


def _hold(request: Request, selection: Selection, decision: Decision, now_s: float) -> Held | None:
    """Return the hold that the policy asks for, or None if the request goes to a worker without delay."""
    if not decision.hold_s:
        return None
    until_s = min(now_s + decision.hold_s, request.arrived_s + LONGEST_HOLD_S)
    first = decision.ranked[0]
    if until_s > now_s and computed(request, selection, first):
        return Held(first if decision.until_prefills_done else None, until_s)
    return None
