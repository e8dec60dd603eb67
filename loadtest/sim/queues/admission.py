"""The product's own admission on virtual time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from random import Random

from loadtest.sim.gateway import HeldCall, Placed, Rejected, SimulatedGateway
from router.placement.admission.admission import Admission, Waits
from router.placement.admission.classes import Claim, RequestClass
from router.placement.admission.prediction import EarlyRefusal
from router.placement.request import Request
from router.placement.tickets import Ticket


class AdmissionCalls:
    """Offers waiting calls when there may be room. `claims` are by session.

    Sessions in `spared` are not refused, to see what would have become of them; `would_refuse` are those concerned.
    """

    def __init__(
        self,
        gateway: SimulatedGateway,
        classes: Sequence[RequestClass],
        claims: Mapping[str, Claim],
        seed: int = 0,
        spared: Collection[str] = (),
    ) -> None:
        self._gateway = gateway
        self._time = gateway.time
        self._claims = dict(claims)
        self._spared = spared
        self.would_refuse: list[str] = []
        core, rng = gateway.core, Random(f"admission {seed}")
        self.admission: Admission[HeldCall] = Admission(
            classes, core.dispatcher, gateway.fleet, core.loads, core.tickets, rng
        )
        core.tickets.on_room.append(self._room)
        self._turn_s = -1.0
        """When the next turn is scheduled; negative if none is."""

    def arrived(self, request: Request) -> Placed | Rejected | HeldCall:
        call = HeldCall(self._leave, request)
        answer = self._ask(call)
        if answer is None:
            self._turn_at(self._time.now_s)
        return call if answer is None else answer

    def _ask(self, call: HeldCall) -> Placed | Rejected | None:
        request, session = call.request, call.request.session_id or ""
        answer = self.admission.ask(call, request, self._claims[session], self._time.now_s)
        if isinstance(answer, EarlyRefusal) and session in self._spared:
            self.would_refuse.append(session)
            claim = self._claims[session]
            self._claims[session] = replace(claim, of=replace(claim.of, max_wait_s=None))
            answer = self.admission.ask(call, request, self._claims[session], self._time.now_s)
        if isinstance(answer, Waits):
            return None
        return Rejected(answer.reason) if isinstance(answer, EarlyRefusal) else self._gateway.placed(answer)

    def _leave(self, call: HeldCall) -> bool:
        return self.admission.leave(call, self._time.now_s) is not None

    def _room(self, ticket: Ticket) -> None:
        if len(self.admission):
            self._turn_at(self._time.now_s)

    def _turn_at(self, at_s: float) -> None:
        if 0.0 <= self._turn_s <= at_s:
            return
        self._turn_s = at_s
        self._time.at(at_s, self._turn, at_s)

    def _turn(self, at_s: float) -> None:
        if at_s != self._turn_s:
            return
        self._turn_s, now_s = -1.0, self._time.now_s
        self._gateway.hear()
        for one in self.admission.expired(now_s):
            one.item.hear(Rejected("waited for too long"))
        after_s = self.admission.turn(now_s, self._offer)
        if len(self.admission):
            self._turn_at(now_s + after_s)

    def _offer(self, call: HeldCall) -> None:
        answer = self._ask(call)
        if answer is not None:
            call.hear(answer)
