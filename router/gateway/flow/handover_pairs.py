"""Which two workers share a request."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from backends.vllm.handover.answer_apis import ANSWER_APIS, Members
from backends.vllm.handover.connector import FactSource
from backends.vllm.handover.parameters import HandoverError
from backends.vllm.handover.prefiller_header import NAME as PREFILLER
from backends.vllm.handover.prefiller_header import named_worker
from backends.vllm.handover.request_body import split
from router.errors import ErrorKind, RequestError
from router.gateway.flow.handover import KvHandover, SidecarHandover
from router.gateway.flow.handover_parts import HandoverParts
from router.gateway.flow.kept_turns import given_prompt, gives_ids
from router.placement.handover import PlannedHandover
from router.placement.handover_roles import SIDECAR
from router.placement.kept_turns import GivenPrompt, KeptTurn
from router.placement.lifecycle_events import Request


class Handovers(HandoverParts):
    """Decides for each request whether two workers share it."""

    __slots__ = ()

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
        asked: SharedBody | None = None
        turns: list[KeptTurn] = []
        if self.turns is not None and self.turns.count and gives_ids(request):
            asked = self._asked(request, body)
            if asked is None:
                return None
            turns = self.turns.extended_by(asked.given)
        planned = self.dispatcher.plan_handover(request, now_s, within=within, prefiller=prefiller, turns=turns)
        refuses = self.config.no_prefill_worker == "refuse"
        if not (self._introduced(planned) if isinstance(planned, PlannedHandover) else planned and refuses):
            return None
        if asked is None and (asked := self._asked(request, body)) is None:
            return None
        if not isinstance(planned, PlannedHandover):
            return RequestError(ErrorKind.NO_WORKER, "no prefill worker of this model is ready")
        return PossiblePair(self, planned, asked, turns)

    def turns_before(self, request: Request, body: bytes) -> list[KeptTurn]:
        if self.turns is None or not gives_ids(request):
            return []
        asked = self._asked(request, body)
        return [] if asked is None else self.turns.extended_by(asked.given)

    def _asked(self, request: Request, body: bytes) -> SharedBody | None:
        """Return the body's members, if two workers may share it."""
        try:
            members = split(body, ANSWER_APIS[request.path], self.connector)
        except HandoverError:
            return None
        return SharedBody(members, None if self.turns is None else given_prompt(request.model, members))

    def _introduced(self, planned: PlannedHandover) -> bool:
        """Return whether enough is known of the planned prefill worker, or its answer will say it."""
        candidate = planned.prefill.selection.candidates[planned.cost.prefill]
        if self.connector.facts_from is not FactSource.BOOTSTRAP or not self.peers.lacks(candidate):
            return True
        self.peers.ask(candidate.endpoint)
        return False


class SharedBody(NamedTuple):
    """The outermost members of a request that two workers may share, and its prompt if that is token ids and decode
    workers keep turns."""

    members: Members
    given: GivenPrompt | None


@dataclass(frozen=True, slots=True)
class PossiblePair:
    """A pair that may share a request. Nothing is reserved yet. The prompt extends `turns`."""

    handovers: Handovers
    planned: PlannedHandover
    asked: SharedBody
    turns: list[KeptTurn]

    def begin(self, request: Request, now_s: float) -> KvHandover:
        handovers, planned, (members, given) = self.handovers, self.planned, self.asked
        receiver = planned.decode.selection.candidates[planned.cost.decode]
        if SIDECAR in receiver.endpoint.labels:
            planned = planned._replace(turn=None, after=None)
            return SidecarHandover(handovers, members, handovers.dispatcher.hand_over(request, planned, now_s))
        tickets = handovers.dispatcher.hand_over(request, planned, now_s)
        if handovers.turns is None:
            return KvHandover(handovers, members, tickets)
        says = handovers.turns.take(planned, given, self.turns, now_s)
        if planned.turn is None:
            handovers.metrics.turn_kept(says)
        leg = tickets.prefill.record.leg
        assert leg is not None
        tickets.prefill.record.leg = leg._replace(turn=says)
        return KvHandover(handovers, members, tickets, given, planned.turn)
