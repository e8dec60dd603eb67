"""Plan requests that workers share, and place them.

A plan is a list of legs, of which the last one writes the answer. Either one worker computes the prompt and hands the
KV cache to the one that answers (a handover), or the worker that answers pulls the start of the prompt from another
one, which has it in host memory, and computes the rest (a pull). A plan is made if it costs less than one worker.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from backends.vllm.handover.connector import Order
from backends.vllm.handover.connectors import CONNECTORS
from backends.vllm.handover.offloading_peer import SERVED_TIERS
from policies.handover_cost import Matrix, MoveCost, cheapest_pair, pair_terms, pull_cost, total
from policies.kv_space import fits
from policies.view import FleetView
from policies.wrappers.prefill_lanes import lane_prices_s
from router.config.model import HandoverConfig
from router.placement.decision_log.decisions import DecisionRecord, HandoverLeg
from router.placement.fleet.endpoints import PREFILL, Candidate
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.residency_source import ResidencySource
from router.placement.handover.explained import ExplainedHandover, alone_explained, explained
from router.placement.handover.kv_formats import alike_formats, kv_format
from router.placement.handover.links import Link, LinkKind, Links, Transfer
from router.placement.handover.plan import (
    Leg,
    LegPlan,
    after_transfer,
    choose,
    decoding,
    free_first,
    peer_address,
    prefill_of,
)
from router.placement.load.fleet_load import WorkerLoads
from router.placement.named_policies import NamedPolicies
from router.placement.placer import Placer
from router.placement.request import FailurePoint, Request
from router.placement.retry_budget import RetryBudget, tried
from router.placement.selection import Selection, Selector
from router.placement.ticket_life import Tickets
from router.placement.tickets import Queued, Reject, Ticket


class _Pairs(NamedTuple):
    """Both sides of all pairs, the workers for whole requests, and the costs of the pairs, by term and in all."""

    senders: DecisionRecord
    receivers: DecisionRecord
    singles: FleetView
    terms: Mapping[str, Matrix]
    costs_s: Matrix

    @property
    def cheapest(self) -> MoveCost:
        return cheapest_pair(self.costs_s, self.receivers.fleet, self.singles)


class HandoverPlanner:
    """Compares plans with single workers, and reserves the load of a plan. Without a setting for it, it plans none."""

    def __init__(
        self,
        config: HandoverConfig,
        fleet: Fleet,
        residency: ResidencySource,
        selector: Selector,
        placer: Placer,
        tickets: Tickets,
        loads: WorkerLoads,
        policies: NamedPolicies,
        budget: RetryBudget,
    ) -> None:
        kinds: tuple[LinkKind, ...] = "handover", "pull"
        self.links = {kind: Links(kind, config.transfer_tokens_per_s, config.latency_s) for kind in kinds}
        self._config = config
        self._together = config.connector is not None and CONNECTORS[config.connector].order is Order.TOGETHER
        self._fleet = fleet
        self._residency = residency
        self._selector = selector
        self._placer = placer
        self._tickets = tickets
        self._loads = loads
        self._policies = policies
        self._budget = budget

    def plan(
        self,
        request: Request,
        now_s: float,
        allows: Callable[[LegPlan], bool],
        *,
        within: Container[str] | None = None,
        prefiller: str | None = None,
    ) -> LegPlan | DecisionRecord | None:
        """Return the plan that delays least, if it costs less than one worker.

        `allows` says whether the request's body and what is known of the workers allow a plan. `within` limits the
        endpoints, and `prefiller` is as in `pair`. Without a plan, return what the policy has decided meanwhile, for
        `Dispatcher.dispatch`, or None if it was not asked.
        """
        pair = pull = None
        if self._config.connector is not None:
            found = self.pair(request, now_s, within=within, prefiller=prefiller)
            if isinstance(found, LegPlan):
                pair = found if allows(found) else None
        if pair is None or not pair.at_any_cost:
            pull = self.pull(request, now_s, within=within)
        if isinstance(pull, LegPlan):
            if pair is None:
                return pull if allows(pull) else pull.answer.seen
            return pull if pull.cost.delay_s < pair.cost.cost_s else pair
        return pull if pair is None else pair

    # handovers

    def pair(
        self,
        request: Request,
        now_s: float,
        *,
        within: Container[str] | None = None,
        prefiller: str | None = None,
        even_if_dearer: bool = False,
    ) -> LegPlan | Queued | Reject | None:
        """Return the cheapest pair of workers for the request if it costs less than one worker; None if it does not.

        `prefiller` is the prefill worker that it must have at any cost, if that is ready. With `even_if_dearer` the
        pair may cost more. `Queued` and `Reject` say why no prefill worker can take it.
        """
        prefill = self._selector.select(request, (), now_s, within, prefill=True)
        if not isinstance(prefill, Selection):
            return prefill
        alone = self._selector.select(request, (), now_s, within)
        if not isinstance(alone, Selection):
            return None
        named = tuple(one for one in prefill.candidates if one.endpoint.id == prefiller)
        if named:
            prefill = Selection(named, prefill.trial if prefill.trial is named[0].endpoint else None)
        pairs = self._compared(request, prefill, alone, now_s, within, alternatives=not named)
        if pairs is None:
            return None
        cost, at_any_cost = pairs.cheapest, even_if_dearer or bool(named)
        if not (cost.pays or (at_any_cost and cost.possible)):
            return None
        sender, receiver = pairs.senders.candidates[cost.sender], pairs.receivers.candidates[cost.receiver]
        legs = (
            Leg(sender, pairs.senders, cost.sender),
            Leg(receiver, pairs.receivers, cost.receiver, "beside" if self._together else "after"),
        )
        return LegPlan("handover", legs, sender, cost, at_any_cost)

    def explain(self, request: Request, now_s: float) -> ExplainedHandover:
        """Return whether two workers would share the request, and what that costs, without changing any state."""
        prefill = self._selector.select(request, (), now_s, prefill=True)
        alone = self._selector.select(request, (), now_s)
        if not isinstance(prefill, Selection):
            return ExplainedHandover(False, "no prefill worker can take it now")
        if not isinstance(alone, Selection):
            return ExplainedHandover(False, "no worker can take the whole request now")
        pairs = self._compared(request, prefill, alone, now_s)
        if pairs is None:
            singles = self._placer.see(request, alone, now_s).fleet
            return ExplainedHandover(False, "no ready worker receives KV caches", (), alone_explained(singles))
        return explained(pairs.senders.fleet, pairs.receivers.fleet, pairs.singles, pairs.terms, pairs.costs_s)

    def prefillers(self, model: str | None) -> frozenset[str]:
        """Return the endpoints that may compute prompts of `model` for other workers, ready or not."""
        return frozenset(endpoint.id for endpoint in self._fleet.candidate_sets.prefilling(model).able)

    def _compared(
        self,
        request: Request,
        prefill: Selection,
        alone: Selection,
        now_s: float,
        within: Container[str] | None = None,
        *,
        alternatives: bool = True,
    ) -> _Pairs | None:
        """Return the costs of all pairs; None if no worker receives KV caches.

        While a prefill or a decode worker has a trial, these are the pairs with it if one pays. Two workers on trial
        are no pair. Without `alternatives`, no other prefill worker takes the place of the one on trial.
        """
        without: Selection | None = prefill
        if prefill.trial is not None:
            others = self._selector.select(request, (prefill.trial.id,), now_s, within, prefill=True)
            without = others if alternatives and isinstance(others, Selection) else None
        ready, on_trial = decoding(alone, self._config.connector)
        found = None
        if prefill.trial is not None and ready is not None:
            senders = Selection(prefill.trial.candidates, prefill.trial)
            found = self._pairs(request, senders, ready, alone, now_s)
            if found.cheapest.pays or without is None:
                return found
        for receivers in (on_trial, ready):
            if receivers is not None and without is not None:
                found = self._pairs(request, without, receivers, alone, now_s)
                if found.cheapest.pays:
                    break
        return found

    def _pairs(self, request: Request, prefill: Selection, decode: Selection, alone: Selection, now_s: float) -> _Pairs:
        senders, receivers = self._placer.see(request, prefill, now_s), self._placer.see(request, decode, now_s)
        singles = self._placer.see(request, alone, now_s).fleet
        streams = np.array([one.endpoint.role != PREFILL for one in prefill.candidates])
        speeds = self.links["handover"].speeds(prefill.candidates, decode.candidates, now_s)
        alike = alike_formats(prefill.candidates, decode.candidates, request.model)
        terms = pair_terms(senders.fleet, receivers.fleet, *speeds, streams)
        return _Pairs(senders, receivers, singles, terms, np.where(alike, total(terms), np.inf))

    # pulls

    def pull(
        self, request: Request, now_s: float, *, within: Container[str] | None = None
    ) -> LegPlan | DecisionRecord | None:
        """Return the cheapest pull, if it costs less than the policy's worker without one.

        Only workers pull into whose KV cache the prompt fits: the policy's and, if the policy minimises seconds, the
        one that is free first. Otherwise, and if the policy holds the request for KV space, return the policy's
        decision, or None if no source was a reason to ask the policy.
        """
        prompt = request.prompt
        alone = None if self._config.pulls is None else self._selector.select(request, (), now_s, within)
        if not isinstance(alone, Selection) or alone.trial is not None:
            return None
        if prompt is None or prompt.multiple or not request.reads_cache:
            return None
        able = self._fleet.candidate_sets.of(request.model), self._fleet.candidate_sets.prefilling(request.model)
        sources = tuple(dict.fromkeys((*able[0].ready, *able[1].ready)))
        slots = {candidate.slot for candidate in (*sources, *alone.candidates)}
        held = self._residency.held_below(prompt, slots, SERVED_TIERS)
        holders = tuple(one for one in sources if one.slot in held and peer_address(one) is not None)
        if not holders:
            return None
        decided = self._placer.decide(request, alone, now_s)
        if decided.decision.hold_s and not decided.decision.until_prefills_done:
            return decided  # it is held for KV space, and would need as much if it came from another worker
        row = decided.fleet.row_of(decided.decision.ranked[0])
        assert row is not None, "the policy runner has checked it"
        here = self._pull_by(request, decided, row, holders, held)
        found = [here] if fits(decided.fleet.worker(row)) else []
        other = free_first(decided)
        if other is not None and other != row:
            there = self._pull_by(request, decided, other, holders, held)
            found.append(there._replace(cost=self._elsewhere(request, decided, here, there)))
        paying = (one for one in found if one.cost.pays)
        return min(paying, key=lambda one: one.cost.cost_s - one.cost.alone_s, default=decided)

    def _pull_by(
        self, request: Request, decided: DecisionRecord, row: int, holders: Sequence[Candidate], held: Mapping[int, int]
    ) -> LegPlan:
        """Return the cheapest pull by the worker at `row` from one of `holders`. `held` are tokens by slot."""
        worker, view, now_s = decided.candidates[row], decided.fleet.worker(row), decided.fleet.now_s
        source_tokens = np.array([float(held[one.slot]) for one in holders])
        alike = alike_formats(holders, (worker,), request.model)[:, 0]
        alike &= np.array([one.slot != worker.slot for one in holders])
        tokens_per_s, latency_s = self.links["pull"].speeds(holders, (worker,), now_s)
        speed = tokens_per_s[:, 0], latency_s[:, 0]
        own_tokens, decode_s = held.get(worker.slot, 0), decided.request.decode_s
        cost = pull_cost(view, own_tokens, source_tokens, *speed, alike, decode_s)
        return LegPlan("pull", (Leg(worker, decided, row),), holders[cost.sender], cost._replace(receiver=row))

    def _elsewhere(self, request: Request, decided: DecisionRecord, here: LegPlan, there: LegPlan) -> MoveCost:
        """Return the cost of a pull by another worker beside that of the policy's worker without one.

        Both have their price by the policy's prefill lanes: of the rest of the prompt there, and of all of it here.
        """
        fleet, cost = decided.fleet, there.cost
        pulled = msgspec.structs.replace(fleet.worker(there.answer.row), prefill_s=cost.rest_s)
        both = FleetView(fleet.now_s, (fleet.worker(here.answer.row), pulled))
        lane_s = lane_prices_s(self._policies.of(request.policy).policy, decided.request, both) or (0.0, 0.0)
        alone_s, pull_s = here.cost.alone_s + lane_s[0], cost.cost_s + lane_s[1]
        return cost._replace(alone_s=alone_s, cost_s=pull_s, delay_s=cost.delay_s + lane_s[1])

    # placements

    def reserve(self, request: Request, plan: LegPlan, now_s: float) -> Ticket:
        """Reserve the load of every leg, and return the ticket of the answer; `Ticket.prefill` is that of the prompt.

        The blocks of the answer's worker are reserved when they have arrived: until then, another request with this
        prefix finds none.
        """
        answer, cost = plan.answer, plan.cost
        view, seen = answer.seen.fleet.worker(answer.row), answer.seen
        after = after_transfer(view, cost)
        if plan.kind == "pull":
            by_policy = view.id == seen.decision.ranked[0]
            reason = (
                f"pull {cost.tokens} tokens from {plan.source.id}: {cost.cost_s:.3g} s, {cost.alone_s:.3g} s without"
            )
            if by_policy:
                seen.decision = msgspec.structs.replace(seen.decision, reason=reason)
            else:
                choose(answer, f"{reason} on {seen.decision.ranked[0]}")
            ticket = self._placer.place(request, seen, now_s, 1, by_policy=by_policy, after=after)
            ticket.moved_tokens = cost.tokens
            ticket.shadow = None  # what the answer will show is not what the policies saw
        else:
            self._loads.arrived(seen.request.block_hashes, now_s)
            gain, first = f"{cost.cost_s:.3g} s, {cost.alone_s:.3g} s on one worker", plan.legs[0]
            choose(first, f"prefill for {answer.worker.id}: {gain}")
            prefill = self._placer.place(prefill_of(request), first.seen, now_s, 1, by_policy=False)
            choose(answer, f"decode after {first.worker.id}: {gain}")
            ticket = self._placer.place(request, seen, now_s, 1, by_policy=False, after=after)
            ticket.received, ticket.moved_tokens, ticket.prefill = True, cost.tokens, prefill
            ticket.load.account.prefilled(ticket.reservation, now_s)
            prefill.record.leg = HandoverLeg("prefill", ticket.id, ticket.candidate.id)
            ticket.record.leg = HandoverLeg("decode", ticket.id, prefill.candidate.id)
        self._placer.later(self._tickets.placed, ticket)
        return ticket

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
        """Release a failed prefill, and place it on the like prefill worker that will have it done first.

        None if there is none within the budget. `receiver` is the endpoint that waits for the prompt's KV cache.
        """
        if ticket.ended:
            return None
        self._tickets.failed(ticket, point, now_s, reason, retry_after_s)
        request = ticket.request
        if self._budget.exhausted(ticket, point):
            return None
        without = tried(ticket) if receiver is None else (*tried(ticket), receiver)
        selection = self._selector.select(request, without, now_s, within, prefill=True)
        if not isinstance(selection, Selection) or selection.trial is not None or not self._budget.pay(point, now_s):
            return None
        wanted = kv_format(ticket.candidate, request.model)
        alike = tuple(one for one in selection.candidates if kv_format(one, request.model).understands(wanted))
        if not alike:
            return None
        seen = self._placer.see(request, Selection(alike), now_s)
        row = int((seen.fleet.queue_wait_s + seen.fleet.prefill_s).argmin())
        choose(Leg(alike[row], seen, row), "prefill again after a failure")
        again = self._placer.place(request, seen, now_s, ticket.attempt + 1, by_policy=False)
        again.record.leg = ticket.record.leg
        self._budget.follow(ticket, again, point, None)
        return again

    # transfers

    def transfer(self, ticket: Ticket, now_s: float, pull: LegPlan | None = None) -> Transfer:
        """Begin to measure a transfer: the request is sent now to the worker that answers.

        After a handover, it computes one token behind its queue; after a `pull`, the rest of the prompt.
        """
        if pull is not None:
            cost, tokens = pull.cost, ticket.moved_tokens
            return Transfer("pull", pull.source, ticket.candidate, tokens, cost.rest_s, cost.queue_s, now_s)
        assert ticket.prefill is not None
        (view,) = self._loads.views((ticket.candidate,), None, 1, now_s)
        ends = ticket.prefill.candidate, ticket.candidate
        return Transfer("handover", *ends, ticket.moved_tokens, view.prefill_s, view.queue_wait_s, now_s)

    def transferred(self, transfer: Transfer, now_s: float) -> None:
        """Learn from a transfer: the first event of a streamed answer arrived at `now_s`."""
        self.links[transfer.kind].observe(transfer, now_s)

    def known_links(self, now_s: float) -> list[Link]:
        """Return the links over which KV cache has moved, as decisions see them now."""
        return [link for links in self.links.values() for link in links.known(now_s)]
