"""What queue rules of other routers share: calls wait, and a rule says which one goes next."""

from __future__ import annotations

from collections.abc import Mapping

from loadtest.sim.gateway import HeldCall, Placed, Rejected, SimulatedGateway
from router.placement.admission.classes import Claim
from router.placement.fleet.endpoints import Candidate
from router.placement.request import Request
from router.placement.tickets import Held, Ticket

TICK_S = 0.001
"""llm-d's dispatch cycle; the others look again when something ends, which is no later."""


class WaitingCalls:
    """Calls in a queue. Each has a claim, by session. Subclasses choose the next call, or none."""

    def __init__(self, gateway: SimulatedGateway, claims: Mapping[str, Claim]) -> None:
        self.gateway = gateway
        self.time = gateway.time
        self.claims = claims
        self.calls: dict[HeldCall, float] = {}
        """When each came."""
        self._ticks = False
        gateway.core.tickets.on_room.append(self.ended)

    def next(self) -> HeldCall | None:
        """Return the call to dispatch now; None if all wait on."""
        raise NotImplementedError

    def entered(self, call: HeldCall) -> bool:
        """Note a new call. Return False to refuse it."""
        return True

    def dispatched(self, call: HeldCall, ticket: Ticket) -> None:
        """Note that a call was dispatched."""

    def left(self, call: HeldCall) -> None:
        """Note that a call waits no longer."""

    def ended(self, ticket: Ticket) -> None:
        """Note the end of a prefill or of a request."""
        self.look_soon()

    def claim(self, call: HeldCall) -> Claim:
        return self.claims[call.request.session_id or ""]

    def candidates(self) -> tuple[Candidate, ...]:
        return self.gateway.fleet.candidates

    def arrived(self, request: Request) -> Placed | Rejected | HeldCall:
        call = HeldCall(self._leave, request)
        if not self.entered(call):
            return Rejected("its queue is full")
        self.calls[call] = self.time.now_s
        self.look_soon()
        return call

    def look_soon(self, after_s: float = 0.0) -> None:
        if self.calls and not self._ticks:
            self._ticks = True
            self.time.after(after_s, self._look)

    def _look(self) -> None:
        self._ticks = False
        self.gateway.hear()
        self._expire()
        while self.calls and (call := self.next()) is not None:
            answer = self.gateway.core.dispatcher.dispatch(call.request, self.time.now_s)
            assert not isinstance(answer, Held), "it was not asked for"
            if isinstance(answer, Ticket):
                self.dispatched(call, answer)
            self._leave(call)
            call.hear(self.gateway.placed(answer))
        self.look_soon(TICK_S)

    def _expire(self) -> None:
        now_s = self.time.now_s
        late = [call for call, at_s in self.calls.items() if now_s - at_s >= self.longest_s(call)]
        for call in late:
            self._leave(call)
            call.hear(Rejected("waited for too long"))

    def longest_s(self, call: HeldCall) -> float:
        """Return how long the call may wait."""
        raise NotImplementedError

    def _leave(self, call: HeldCall) -> bool:
        if self.calls.pop(call, None) is None:
            return False
        self.left(call)
        return True
