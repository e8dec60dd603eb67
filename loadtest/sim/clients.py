"""Clients that send the calls of their sessions through one gateway or several."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf

from loadtest.sim.calls import PlacedCall, SharedCall
from loadtest.sim.gateway import HeldCall, Placed, Rejected, SimulatedGateway
from loadtest.sim.outcome import Ending, Outcome
from loadtest.sim.sessions import Session
from loadtest.sim.virtual_time import VirtualTime


class Clients:
    """Sends each session's calls in order, each after the end of the one before, and collects `outcomes` as they end.

    Sessions are dealt out to the gateways in turn, as connections are, and stay there. A call is placed `arrival_s`
    after it was sent: the time to reach the gateway, and the gateway's work before the decision. `request_s` is the
    delay from there to the worker. Nothing is sent from `until_s` on.
    """

    def __init__(
        self,
        time: VirtualTime,
        gateways: Sequence[SimulatedGateway],
        request_s: float,
        *,
        arrival_s: float = 0.0,
        until_s: float = inf,
    ) -> None:
        self.outcomes: list[Outcome] = []
        self._time = time
        self._gateways = gateways
        self._gateway_of: dict[str, SimulatedGateway] = {}
        self._request_s = request_s
        self._arrival_s = arrival_s
        self._until_s = until_s
        self._sent = 0

    @property
    def waiting(self) -> bool:
        """Whether an answer is still pending."""
        return len(self.outcomes) < self._sent

    def play(self, session: Session) -> None:
        """Schedule the session's first call."""
        self._time.at(session.start_s, self._send, session, 0)

    def _send(self, session: Session, number: int) -> None:
        if self._time.now_s >= self._until_s:
            return
        self._sent += 1
        if self._arrival_s:
            self._time.after(self._arrival_s, self._arrived, session, number, self._time.now_s)
        else:
            self._arrived(session, number, self._time.now_s)

    def _arrived(self, session: Session, number: int, sent_s: float) -> None:
        call, name = session.calls[number], f"{session.id}/{number}"
        gateway = self._gateway_of.get(session.id)
        if gateway is None:
            gateway = self._gateways[len(self._gateway_of) % len(self._gateways)]
            self._gateway_of[session.id] = gateway
        placed = gateway.place(name, session.id, call)
        if isinstance(placed, HeldCall):
            placed.heard.append(lambda found: self._placed(found, session, number, sent_s))
            if call.leaves_after_s is not None:
                leaves_s = max(self._time.now_s, sent_s + call.leaves_after_s)
                self._time.at(leaves_s, self._left, placed, session, number, sent_s)
        else:
            self._placed(placed, session, number, sent_s)

    def _placed(self, placed: Placed | Rejected, session: Session, number: int, sent_s: float) -> None:
        if isinstance(placed, Rejected):
            self._unplaced(Ending.REJECTED, session, number, sent_s)
            return
        where = self._time, f"{session.id}/{number}", session.id, session.calls[number], placed, self._request_s
        ended = partial(self._ended, session=session, number=number)
        if placed.prefill is None:
            PlacedCall(*where, ended, sent_s)
        else:
            SharedCall(*where, ended, sent_s, partial(self._alone, placed, session, number, sent_s))

    def _alone(self, placed: Placed, session: Session, number: int, sent_s: float, reason: str) -> None:
        """Place a call on one worker, because two could not share it."""
        self._placed(placed.gateway.place_alone(placed, reason), session, number, sent_s)

    def _left(self, held_call: HeldCall, session: Session, number: int, sent_s: float) -> None:
        if held_call.leave():
            self._unplaced(Ending.LEFT, session, number, sent_s)

    def _unplaced(self, ending: Ending, session: Session, number: int, sent_s: float) -> None:
        name, tokens = f"{session.id}/{number}", session.calls[number].prompt_tokens
        outcome = Outcome(name, session.id, ending, "", sent_s, self._time.now_s, None, tokens, 0, None, None)
        self._ended(outcome, session, number)

    def _ended(self, outcome: Outcome, session: Session, number: int) -> None:
        self.outcomes.append(outcome)
        if number + 1 < len(session.calls):
            self._time.after(session.calls[number + 1].pause_s, self._send, session, number + 1)
