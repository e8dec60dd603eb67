"""Place a request on a worker that pulls the start of the prompt from another one, which has it in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from backends.vllm.handover.offloading_peer import PEER_LABEL, SERVED_TIERS, SIDE_CHANNEL_PORT
from backends.vllm.handover.parameters import labelled_address
from policies.handover_cost import PullCost, pull_cost
from policies.view import WorkerView
from router.config.model import HandoverConfig
from router.placement.endpoints import Candidate
from router.placement.handover import after_transfer
from router.placement.kv_formats import alike_formats
from router.placement.lifecycle_events import Request
from router.placement.links import Links, Transfer
from router.placement.placing import Decided, Placer
from router.placement.residency_source import ResidencySource
from router.placement.selection import Selection
from router.placement.shared_cards import TransfersUnderWay
from router.placement.tickets import Ticket


class PlannedPull(NamedTuple):
    """A pull by the worker that the policy decided for, as the policy saw it, and what it costs beside that worker
    without it.

    Nothing is reserved yet.
    """

    decided: Decided
    worker: WorkerView
    source: Candidate
    cost: PullCost


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
    ) -> PlannedPull | Decided | None:
        """Return a pull from one of `sources` to the worker that the policy decides for, if it saves time there.

        `even_if_dearer`: return it whatever it costs. Otherwise, and if the policy holds the request for KV space,
        return the policy's decision, or None if no source was a reason to ask the policy.
        """
        prompt = request.prompt
        if prompt is None or prompt.multiple or not request.reads_cache or alone.trial is not None:
            return None
        workers = alone.candidates
        slots = {candidate.slot for candidate in (*sources, *workers)}
        held = self._residency.held_below(prompt, slots, SERVED_TIERS)
        holders = tuple(one for one in sources if one.slot in held and peer_address(one) is not None)
        if not holders:
            return None
        decided = self._placer.decide(request, alone, now_s)
        if decided.decision.hold_s and not decided.decision.until_prefills_done:
            return decided  # it is held for KV space, and would need as much if it came from another worker
        place = decided.fleet.place_of(decided.decision.ranked[0])
        assert place is not None, "the policy runner has checked it"
        worker, view = workers[place], decided.fleet.worker(place)
        source_tokens = np.array([float(held[one.slot]) for one in holders])
        alike = alike_formats(holders, (worker,), request.model)[:, 0]
        alike &= np.array([one.slot != worker.slot for one in holders])
        tokens_per_s, latency_s = self.links.speeds(holders, (worker,), now_s)
        speed = tokens_per_s[:, 0], latency_s[:, 0]
        under_way = self._under_way.seen(holders, worker)
        cost = pull_cost(view, held.get(worker.slot, 0), source_tokens, *speed, alike, under_way)
        planned = cost.pays or (even_if_dearer and cost.pull_s < np.inf)
        return PlannedPull(decided, view, holders[cost.source], cost) if planned else decided

    def reserve(self, request: Request, planned: PlannedPull, now_s: float) -> Ticket:
        """Reserve the rest of the prefill and the KV space of the prompt on the worker that pulls.

        Its blocks are reserved when they have arrived: until then, another request with this prefix finds none.
        """
        decided, cost = planned.decided, planned.cost
        reason = (
            f"pull {cost.tokens} tokens from {planned.source.id}: {cost.pull_s:.3g} s, {cost.alone_s:.3g} s without"
        )
        after = after_transfer(planned.worker, cost.loaded_tokens, cost.rest_s)
        decision = msgspec.structs.replace(decided.decision, reason=reason)
        made = msgspec.structs.replace(decided, decision=decision)
        ticket = self._placer.place(request, made, now_s, 1, after=after)
        ticket.moved_tokens = cost.tokens
        self._under_way.begin(ticket, planned.source)
        ticket.shadow = None  # what the answer will show is not what the policies saw
        return ticket

    def transfer(self, planned: PlannedPull, ticket: Ticket, now_s: float) -> Transfer:
        """Return the transfer that begins now. After it, the worker computes the rest behind its queue."""
        ends, queue_s = (planned.source, ticket.candidate), planned.worker.queue_wait_s
        beside = self._under_way.of(ticket)
        return Transfer("pull", *ends, ticket.moved_tokens, planned.cost.rest_s, queue_s, now_s, beside)


def peer_address(candidate: Candidate) -> tuple[str, int] | None:
    """Return host and port of a worker's side channel; None if its label is no address."""
    endpoint = candidate.endpoint
    label = endpoint.labels.get(PEER_LABEL)
    if label is None:
        return endpoint.endpoint.host, SIDE_CHANNEL_PORT + (candidate.rank or 0)
    return labelled_address(label, endpoint.endpoint.host)
