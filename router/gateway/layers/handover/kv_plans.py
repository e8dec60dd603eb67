"""Which of the plans that move KV cache a request gets: a pair of workers, a worker that pulls, or neither."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TypeAlias

from backends.vllm.handover.answer_apis import ANSWER_APIS
from router.errors import RequestError
from router.gateway.layers.handover.handover import KvHandover
from router.gateway.layers.handover.kv_pull import KvPull, Pulls
from router.gateway.layers.handover.pairs import Handovers
from router.gateway.rewrites.body_rewriter import MAX_SEARCHED_BYTES, VOUCHED
from router.placement.handover.pulls import PlannedPull
from router.placement.placer import PendingPlacement
from router.placement.request import Request

KvPlan: TypeAlias = KvHandover | KvPull
"""How workers share one request. Both kinds answer the flow's questions by the same names: does the answer of an
attempt depend on another worker (`depends_at`), how long may it take, what follows its events."""


class KvPlans:
    """Decides for each request whether workers share it. Only plans that the request's body allows are compared."""

    def __init__(self, handovers: Handovers | None, pulls: Pulls | None) -> None:
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
    ) -> KvPlan | PendingPlacement | RequestError | None:
        """Reserve the load of a pair or of a pull, whichever delays less, if it costs less than one worker.

        Otherwise return what the policy has decided meanwhile, or None if it was not asked. A `trusted` caller may name
        the prefill worker in a header.
        """
        if not may_be_shared(request, headers, body):
            return None
        pair = pull = None
        if self._handovers is not None:
            planned = self._handovers.plan(request, headers, body, now_s, within, trusted=trusted)
            if isinstance(planned, RequestError):
                return planned
            pair = planned
        if self._pulls is not None and (pair is None or not pair.planned.at_any_cost):
            pull = self._pulls.plan(request, body, now_s, within, allowed=pair is not None)
        if pair is not None and not (isinstance(pull, PlannedPull) and pull.cost.delay_s < pair.planned.cost.pair_s):
            return pair.begin(request, now_s)
        if isinstance(pull, PlannedPull):
            assert self._pulls is not None
            return self._pulls.begin(request, pull, now_s)
        return pull


def may_be_shared(request: Request, headers: Mapping[bytes, bytes], body: bytes) -> bool:
    prompt = request.prompt
    if request.path not in ANSWER_APIS or prompt is None or prompt.multiple or request.pinned is not None:
        return False
    if request.answers != 1 or not request.reads_cache or len(body) > MAX_SEARCHED_BYTES:
        return False
    return VOUCHED.isdisjoint(headers)
