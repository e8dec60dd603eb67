"""Which of the plans that move KV cache a request gets: a pair of workers, a worker that pulls, or neither."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TypeAlias

from backends.vllm.handover.answer_apis import ANSWER_APIS, Members
from backends.vllm.handover.parameters import HandoverError
from backends.vllm.handover.request_body import outermost, split
from router.gateway.layers.handover.handover import KvHandover, SidecarHandover
from router.gateway.layers.handover.kv_pull import KvPull, Pulls
from router.gateway.layers.handover.pairs import Handovers
from router.placement.decision_log.decisions import DecisionRecord
from router.placement.fleet.roles import SIDECAR
from router.placement.handover.plan import LegPlan
from router.placement.handover.planner import HandoverPlanner
from router.placement.request import Request
from router.requests.rewrites.json_splice import MAX_SEARCHED_BYTES, VOUCHED

KvPlan: TypeAlias = KvHandover | KvPull
"""How workers share one request. Both kinds answer the flow's questions by the same names: does the answer of an
attempt depend on another worker (`depends_at`), how long may it take, what follows its events."""


class KvPlans:
    """Decides for each request whether workers share it. Only plans that the request's body allows are made."""

    def __init__(self, planner: HandoverPlanner, handovers: Handovers | None, pulls: Pulls | None) -> None:
        self._planner = planner
        self._handovers = handovers
        self._pulls = pulls

    def begin(
        self,
        request: Request,
        headers: Mapping[bytes, bytes],
        body: bytes,
        now_s: float,
        within: Container[str] | None,
        *,
        trusted: bool,
    ) -> KvPlan | DecisionRecord | None:
        """Reserve the load of the plan that delays least, if it costs less than one worker.

        Otherwise return what the policy has decided meanwhile, or None if it was not asked. A `trusted` caller may name
        the prefill worker in a header.
        """
        if not may_be_shared(request, headers, body):
            return None
        handovers, members, api = self._handovers, Members(), ANSWER_APIS[request.path]

        def allows(plan: LegPlan) -> bool:
            nonlocal members
            try:
                if plan.kind == "pull":
                    outermost(body, api)
                    return True
                if handovers is None or not handovers.introduced(plan):
                    return False
                members = split(body, api, handovers.connector)
                return True
            except HandoverError:
                return False

        prefiller = None if handovers is None else handovers.prefiller(request, headers, trusted=trusted)
        plan = self._planner.plan(request, now_s, allows, within=within, prefiller=prefiller)
        if not isinstance(plan, LegPlan):
            return plan
        ticket = self._planner.reserve(request, plan, now_s)
        if plan.kind == "pull":
            assert self._pulls is not None
            return KvPull(self._pulls, plan, ticket)
        assert handovers is not None
        kind = SidecarHandover if SIDECAR in plan.answer.worker.endpoint.labels else KvHandover
        return kind(handovers, members, plan, ticket)


def may_be_shared(request: Request, headers: Mapping[bytes, bytes], body: bytes) -> bool:
    prompt = request.prompt
    if request.path not in ANSWER_APIS or prompt is None or prompt.multiple or request.pinned is not None:
        return False
    if request.answers != 1 or not request.reads_cache or len(body) > MAX_SEARCHED_BYTES:
        return False
    return VOUCHED.isdisjoint(headers)
