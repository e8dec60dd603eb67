"""Place a request on a worker that pulls the start of the prompt from another one, which has it in host memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from backends.vllm.handover.offloading_peer import PEER_LABEL, SERVED_TIERS, SIDE_CHANNEL_PORT
from backends.vllm.handover.parameters import labelled_address
from policies.handover_cost import STREAM_WEIGHT, PullCost, pull_cost
from policies.kv_space import columns_fit, fits
from policies.view import Decision, FleetView, WorkerView
from policies.wrappers.prefill_lanes import lane_prices_s
from router.config.model import HandoverConfig
from router.placement.fleet.endpoints import Candidate
from router.placement.fleet.residency_source import ResidencySource
from router.placement.handover.kv_formats import alike_formats
from router.placement.handover.links import Links, Transfer
from router.placement.handover.planner import after_transfer
from router.placement.handover.shared_cards import TransfersUnderWay
from router.placement.placer import PendingPlacement, Placer
from router.placement.request import Request
from router.placement.selection import Selection
from router.placement.tickets import Ticket


class PlannedPull(NamedTuple):
    """A pull by `worker`, as the policy saw it, and what it costs. Nothing is reserved yet.

    `decided` is the policy's decision, mostly for this worker. `cost.alone_s` is that of its worker without a pull.
    """

    decided: PendingPlacement
    worker: WorkerView
    source: Candidate
    cost: PullCost

    @property
    def by_policy(self) -> bool:
        return self.worker.id == self.decided.decision.ranked[0]


class PullPlanner:
    """Compares pulls with single workers, and reserves the load of a pull. Without the setting, it plans none."""

    def __init__(self, config: HandoverConfig, placer: Placer, residency: ResidencySource) -> None:
        self.enabled: Final = config.pulls is not None
        self.links = Links("pull", config.transfer_tokens_per_s, config.latency_s)
        self._under_way = TransfersUnderWay()
        self._placer = placer
        self._residency = residency

    def plan(
        self,
        request: Request,
        alone: Selection,
        sources: Sequence[Candidate],
        now_s: float,
        *,
        even_if_dearer: bool = False,
    ) -> PlannedPull | PendingPlacement | None:
        """Return the cheapest pull from one of `sources`, if it costs less than the policy's worker without one.

        Only workers pull into whose KV cache the prompt fits: the policy's and, if the policy minimises seconds, the
        one that is free first. `even_if_dearer`: return the pull by the policy's worker in any case. Otherwise, and if
        the policy holds the request for KV space, return the policy's decision, or None if no source was a reason to
        ask the policy.
        """
        prompt = request.prompt
        if prompt is None or prompt.multiple or not request.reads_cache or alone.trial is not None:
            return None
        slots = {candidate.slot for candidate in (*sources, *alone.candidates)}
        held = self._residency.held_below(prompt, slots, SERVED_TIERS)
        holders = tuple(one for one in sources if one.slot in held and peer_address(one) is not None)
        if not holders:
            return None
        decided = self._placer.decide(request, alone, now_s)
        if decided.decision.hold_s and not decided.decision.until_prefills_done:
            return decided  # it is held for KV space, and would need as much if it came from another worker
        place = decided.fleet.row_of(decided.decision.ranked[0])
        assert place is not None, "the policy runner has checked it"
        here = self._priced(request, decided, place, holders, held)
        if even_if_dearer:
            return here if here.cost.pull_s < np.inf else decided
        found = [here] if fits(here.worker) else []
        other = _free_first(decided)
        if other not in (None, place):
            there = self._priced(request, decided, other, holders, held)
            found.append(there._replace(cost=_elsewhere(decided, here, there)))
        paying = (one for one in found if one.cost.pays)
        return min(paying, key=lambda one: one.cost.pull_s - one.cost.alone_s, default=decided)

    def _priced(
        self,
        request: Request,
        decided: PendingPlacement,
        place: int,
        holders: Sequence[Candidate],
        held: Mapping[int, int],
    ) -> PlannedPull:
        """Return the cheapest pull by the worker at `place` from one of `holders`. `held` are tokens by slot."""
        worker, view, now_s = decided.selection.candidates[place], decided.fleet.worker(place), decided.fleet.now_s
        source_tokens = np.array([float(held[one.slot]) for one in holders])
        alike = alike_formats(holders, (worker,), request.model)[:, 0]
        alike &= np.array([one.slot != worker.slot for one in holders])
        tokens_per_s, latency_s = self.links.speeds(holders, (worker,), now_s)
        speed = tokens_per_s[:, 0], latency_s[:, 0]
        under_way, own_tokens = self._under_way.seen(holders, worker), held.get(worker.slot, 0)
        cost = pull_cost(view, own_tokens, source_tokens, *speed, alike, under_way, decided.view.decode_s)
        return PlannedPull(decided, view, holders[cost.source], cost)

    def reserve(self, request: Request, planned: PlannedPull, now_s: float) -> Ticket:
        """Reserve the rest of the prefill and the KV space of the prompt on the worker that pulls.

        Its blocks are reserved when they have arrived: until then, another request with this prefix finds none.
        """
        decided, cost, here = planned.decided, planned.cost, planned.by_policy
        reason = (
            f"pull {cost.tokens} tokens from {planned.source.id}: {cost.pull_s:.3g} s, {cost.alone_s:.3g} s without"
        )
        decision = msgspec.structs.replace(decided.decision, reason=reason)
        if not here:
            first, others = planned.worker.id, decided.fleet.ids
            ranked = (first, *[one for one in others if one != first])
            decision = Decision(ranked, f"{reason} on {decided.decision.ranked[0]}")
        after = after_transfer(planned.worker, cost.loaded_tokens, cost.rest_s)
        made = msgspec.structs.replace(decided, decision=decision)
        ticket = self._placer.place(request, made, now_s, 1, by_policy=here, after=after)
        ticket.moved_tokens = cost.tokens
        self._under_way.begin(ticket, planned.source)
        ticket.shadow = None  # what the answer will show is not what the policies saw
        return ticket

    def transfer(self, planned: PlannedPull, ticket: Ticket, now_s: float) -> Transfer:
        """Return the transfer that begins now. After it, the worker computes the rest behind its queue."""
        ends, queue_s = (planned.source, ticket.candidate), planned.worker.queue_wait_s
        beside = self._under_way.of(ticket)
        return Transfer("pull", *ends, ticket.moved_tokens, planned.cost.rest_s, queue_s, now_s, beside)


def _free_first(decided: PendingPlacement) -> int | None:
    """Return the place of the worker, with KV space for the prompt, that would cost least without a prefill.

    None if there is none, or if the policy may have chosen its worker for another reason than time.
    """
    fleet = decided.fleet
    if decided.decision.unit != "s" or not fleet.equal_weights:
        return None
    costs_s = fleet.queue_wait_s + fleet.kv_wait_s + STREAM_WEIGHT * fleet.decode_externality_s
    place = int(np.where(columns_fit(fleet), costs_s, np.inf).argmin())
    return place if fits(fleet.worker(place)) else None


def _elsewhere(decided: PendingPlacement, here: PlannedPull, there: PlannedPull) -> PullCost:
    """Return the cost of a pull by another worker beside that of the policy's worker without one.

    Both have their price by the policy's prefill lanes: of the rest of the prompt there, and of all of it here.
    """
    pulled = msgspec.structs.replace(there.worker, prefill_s=there.cost.rest_s)
    both = FleetView(decided.fleet.now_s, (here.worker, pulled))
    lane_s = lane_prices_s(decided.runner.policy, decided.view, both) or (0.0, 0.0)
    alone_s, pull_s = here.cost.alone_s + lane_s[0], there.cost.pull_s + lane_s[1]
    return there.cost._replace(alone_s=alone_s, pull_s=pull_s, delay_s=there.cost.delay_s + lane_s[1])


def peer_address(candidate: Candidate) -> tuple[str, int] | None:
    """Return host and port of a worker's side channel; None if its label is no address."""
    endpoint = candidate.endpoint
    label = endpoint.labels.get(PEER_LABEL, str(SIDE_CHANNEL_PORT))
    address = labelled_address(label, endpoint.endpoint.host)
    return None if address is None else (address[0], address[1] + (candidate.rank or 0))
