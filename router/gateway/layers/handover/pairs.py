"""Which two workers share a request."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from backends.vllm.handover.answer_apis import ANSWER_APIS, Members
from backends.vllm.handover.connector import FactSource
from backends.vllm.handover.parameters import HandoverError
from backends.vllm.handover.prefiller_header import NAME as PREFILLER
from backends.vllm.handover.prefiller_header import named_worker
from backends.vllm.handover.request_body import split
from router.errors import ErrorKind, RequestError
from router.gateway.layers.handover.handover import KvHandover, SidecarHandover
from router.gateway.layers.handover.prefill_peers import HandoverParts
from router.placement.fleet.roles import SIDECAR
from router.placement.handover.planner import PlannedHandover
from router.placement.request import Request


class Handovers(HandoverParts):
    """Decides for each request whether two workers share it."""

    def plan(
        self,
        request: Request,
        headers: Mapping[bytes, bytes],
        body: bytes,
        now_s: float,
        within: Container[str] | None,
        *,
        trusted: bool = False,
    ) -> PossiblePair | RequestError | None:
        """Return the cheapest pair for the request if that costs less than one worker, and the body allows it.

        A `trusted` caller may name the prefill worker in a header. Then this is the one, at any cost. An error refuses
        the request.
        """
        named = headers.get(PREFILLER) if trusted else None
        prefiller = None if named is None else named_worker(named, self.dispatcher.prefillers(request.model))
        planned = self.dispatcher.plan_handover(request, now_s, within=within, prefiller=prefiller)
        refuses = self.config.no_prefill_worker == "refuse"
        if not (self._introduced(planned) if isinstance(planned, PlannedHandover) else planned and refuses):
            return None
        try:
            members = split(body, ANSWER_APIS[request.path], self.connector)
        except HandoverError:
            return None
        if not isinstance(planned, PlannedHandover):
            return RequestError(ErrorKind.NO_WORKER, "no prefill worker of this model is ready")
        return PossiblePair(self, planned, members)

    def _introduced(self, planned: PlannedHandover) -> bool:
        """Return whether enough is known of the planned prefill worker, or its answer will say it."""
        candidate = planned.prefill.selection.candidates[planned.cost.prefill]
        if self.connector.facts_from is not FactSource.BOOTSTRAP or not self.peers.lacks(candidate):
            return True
        self.peers.ask(candidate.endpoint)
        return False


@dataclass(frozen=True, slots=True)
class PossiblePair:
    """A pair that may share a request. Nothing is reserved yet."""

    handovers: Handovers
    planned: PlannedHandover
    members: Members

    def begin(self, request: Request, now_s: float) -> KvHandover:
        handovers, planned = self.handovers, self.planned
        receiver = planned.decode.selection.candidates[planned.cost.decode]
        kind = SidecarHandover if SIDECAR in receiver.endpoint.labels else KvHandover
        return kind(handovers, self.members, handovers.dispatcher.hand_over(request, planned, now_s))
