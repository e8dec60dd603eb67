"""Prefill and decode on two workers, and pulls, as llm-d's sidecar carries them out.

The planner is that of every front. A gateway's headers name the other worker, and the decode worker's sidecar does the
rest, so that no body changes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from backends.vllm.handover.answer_apis import ANSWER_APIS
from backends.vllm.handover.prefiller_header import NAME as PREFILLER_HEADER
from backends.vllm.handover.prefiller_header import named_worker
from router.picker.protocol.names import PREFILLER, PULL_SOURCE
from router.placement.core import DecisionCore
from router.placement.decision_log.decisions import DecisionRecord
from router.placement.handover.plan import LegPlan
from router.placement.request import Request, Usage
from router.placement.ticket_life import Tickets
from router.placement.tickets import Ticket
from router.requests.placing import SharedPlacement


class MovedCache(SharedPlacement):
    """A request that is decoded at one worker, with KV cache of another one."""

    __slots__ = ("_tickets", "_time", "plan", "ticket")

    def __init__(self, tickets: Tickets, time: Callable[[], float], plan: LegPlan, ticket: Ticket) -> None:
        self._tickets = tickets
        self._time = time
        self.plan = plan
        self.ticket = ticket

    @property
    def noted(self) -> Ticket:
        return self.ticket

    @property
    def header(self) -> tuple[str, bytes]:
        name = PULL_SOURCE if self.plan.kind == "pull" else PREFILLER
        return name, self.plan.source.endpoint.id.encode("ascii")

    def arrived(self, now_s: float) -> None:
        """Note that the answer has begun, so that its prefill is done."""
        self._tickets.arrived(self.ticket)
        if self.ticket.prefill is not None:
            self._tickets.first_token(self.ticket.prefill, now_s)
            self._tickets.finished(self.ticket.prefill, Usage(), now_s)

    def release(self) -> None:
        """End the prefill, of which nobody has seen anything. Idempotent."""
        if self.ticket.prefill is not None:
            self._tickets.released(self.ticket.prefill, self._time())

    def cancel(self) -> None:
        if self.ticket.prefill is not None:
            self._tickets.cancelled(self.ticket.prefill, self._time())


class SidecarPlans:
    """Decides for each request whether workers share it (`router.requests.placing.Planner`)."""

    def __init__(self, core: DecisionCore, time: Callable[[], float]) -> None:
        self._time = time
        self._planner = core.planner
        self._tickets = core.tickets

    def begin(
        self,
        request: Request,
        headers: Mapping[bytes, bytes],
        body: bytes,
        now_s: float,
        within: Container[str] | None,
        *,
        trusted: bool,
    ) -> MovedCache | DecisionRecord | None:
        prompt = request.prompt
        if request.path not in ANSWER_APIS or prompt is None or prompt.multiple or request.pinned is not None:
            return None
        if request.answers != 1 or not request.reads_cache:
            return None
        named = headers.get(PREFILLER_HEADER) if trusted else None
        prefiller = None if named is None else named_worker(named, self._planner.prefillers(request.model))
        plan = self._planner.plan(request, now_s, lambda plan: True, within=within, prefiller=prefiller)
        if not isinstance(plan, LegPlan):
            return plan
        return MovedCache(self._tickets, self._time, plan, self._planner.reserve(request, plan, now_s))
