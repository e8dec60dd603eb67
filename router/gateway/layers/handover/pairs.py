"""What decides, beside its cost, whether two workers may share a request."""

from __future__ import annotations

from collections.abc import Mapping

from backends.vllm.handover.connector import FactSource
from backends.vllm.handover.prefiller_header import NAME as PREFILLER
from backends.vllm.handover.prefiller_header import named_worker
from router.gateway.layers.handover.prefill_peers import HandoverParts
from router.placement.handover.plan import LegPlan
from router.placement.request import Request


class Handovers(HandoverParts):
    """The rules of handovers: who may name a prefill worker, and what must be known of it."""

    def prefiller(self, request: Request, headers: Mapping[bytes, bytes], *, trusted: bool) -> str | None:
        """Return the prefill worker that a `trusted` caller names in a header."""
        named = headers.get(PREFILLER) if trusted else None
        return None if named is None else named_worker(named, self.planner.prefillers(request.model))

    def introduced(self, plan: LegPlan) -> bool:
        """Return whether enough is known of the planned prefill worker, or its answer will say it."""
        if self.connector.facts_from is not FactSource.BOOTSTRAP or not self.peers.lacks(plan.source):
            return True
        self.peers.ask(plan.source.endpoint)
        return False
