"""Clients that send the calls of their sessions through one gateway."""

from __future__ import annotations

from functools import partial
from math import inf

from loadtest.sim.calls import PlacedCall, Sent, SharedCall
from loadtest.sim.gateway import HeldCall, Placed, Rejected, SimulatedGateway
from loadtest.sim.outcome import Ending, Outcome
from loadtest.sim.sessions import Session
from loadtest.sim.virtual_time import VirtualTime


class Clients:
    """Sends each session's calls in order, each after the end of the one before, and collects `outcomes` as they end.

    A call is placed `arrival_s` after it was sent: the time to reach the gateway, and the gateway's work before the
    decision. `request_s` is the delay from there to the worker. Nothing is sent from `until_s` on.
    """

    def __init__(
        self,
        time: VirtualTime,
        gateway: SimulatedGateway,
        request_s: float,
        *,
        arrival_s: float = 0.0,
        until_s: float = inf,
    ) -> None:
        self.outcomes: list[Outcome] = []
        self._time = time
        self._gateway = gateway
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
        sent = Sent(session, number, self._time.now_s)
        if self._arrival_s:
            self._time.after(self._arrival_s, self._arrived, sent)
        else:
            self._arrived(sent)

    def _arrived(self, sent: Sent) -> None:
        placed = self._gateway.place(sent.name, sent.session.id, sent.call)
        if isinstance(placed, HeldCall):
            placed.heard.append(partial(self._placed, sent))
            if sent.call.leaves_after_s is not None:
                self._time.at(max(self._time.now_s, sent.at_s + sent.call.leaves_after_s), self._left, sent, placed)
        else:
            self._placed(sent, placed)

    def _placed(self, sent: Sent, placed: Placed | Rejected) -> None:
        if isinstance(placed, Rejected):
            self._unplaced(sent, Ending.REJECTED)
            return
        ended = partial(self._ended, sent)
        if placed.prefill is None:
            PlacedCall(self._time, sent, placed, self._request_s, ended)
        else:
            SharedCall(self._time, sent, placed, self._request_s, ended, partial(self._alone, sent, placed))

    def _alone(self, sent: Sent, placed: Placed, reason: str) -> None:
        """Place a call on one worker, because two could not share it."""
        self._placed(sent, self._gateway.place_alone(placed, reason))

    def _left(self, sent: Sent, held_call: HeldCall) -> None:
        if held_call.leave():
            self._unplaced(sent, Ending.LEFT)

    def _unplaced(self, sent: Sent, ending: Ending) -> None:
        tokens, now_s = sent.call.prompt_tokens, self._time.now_s
        self._ended(
            sent, Outcome(sent.name, sent.session.id, ending, "", sent.at_s, now_s, None, tokens, 0, None, None)
        )

    def _ended(self, sent: Sent, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        following = sent.number + 1
        if following < len(sent.session.calls):
            self._time.after(sent.session.calls[following].pause_s, self._send, sent.session, following)
