"""Clients that send the calls of their sessions, through the gateway or past it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Protocol

from loadtest.sim.exchange import Direct, PlacedCall, Placement
from loadtest.sim.held import HeldCall
from loadtest.sim.outcome import Ending, Outcome
from loadtest.sim.placements import Rejected, SharedPlacement
from loadtest.sim.sessions import Asked, Session
from loadtest.sim.shared_call import SharedCall
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker


class Places(Protocol):
    """Chooses a worker for a call: one gateway, or several that share the clients."""

    def place(self, name: str, session: str, call: Asked) -> Placement | Rejected | HeldCall:
        """Choose a worker for a call that has just arrived, now or later."""


class Clients:
    """Sends each session's calls in order, each after the end of the one before, and collects `outcomes` as they end.

    A call is placed `arrival_s` after it was sent: the time to reach the gateway, and the gateway's work before the
    decision. Nothing is sent from `until_s` on.
    """

    def __init__(
        self,
        time: VirtualTime,
        gateway: Places,
        workers: Sequence[EngineWorker],
        request_s: float,
        *,
        arrival_s: float = 0.0,
        until_s: float = inf,
    ) -> None:
        self.outcomes: list[Outcome] = []
        self._time = time
        self._gateway = gateway
        self._workers = workers
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
        placed = self._place(session, name, call)
        if isinstance(placed, HeldCall):
            placed.heard.append(lambda placement: self._placed(placement, session, number, sent_s))
            if call.leaves_after_s is not None:
                leaves_s = max(self._time.now_s, sent_s + call.leaves_after_s)
                self._time.at(leaves_s, self._left, placed, session, number, sent_s)
        else:
            self._placed(placed, session, number, sent_s)

    def _placed(self, placed: Placement | Rejected, session: Session, number: int, sent_s: float) -> None:
        call, name = session.calls[number], f"{session.id}/{number}"
        if isinstance(placed, Rejected):
            self._unplaced(Ending.REJECTED, session, number, sent_s)
            return
        where = self._time, name, session.id, call
        ended = partial(self._ended, session=session, number=number)
        if isinstance(placed, SharedPlacement):
            alone = partial(self._alone, placed, session, number, sent_s)
            SharedCall(*where, placed, self._request_s, ended, alone, sent_s)
        else:
            PlacedCall(*where, placed, self._request_s, ended, sent_s)

    def _alone(self, placement: SharedPlacement, session: Session, number: int, sent_s: float, reason: str) -> None:
        """Place a call on one worker, because two could not share it."""
        self._placed(placement.place_alone(reason), session, number, sent_s)

    def _left(self, held_call: HeldCall, session: Session, number: int, sent_s: float) -> None:
        if held_call.leave():
            self._unplaced(Ending.LEFT, session, number, sent_s)

    def _unplaced(self, ending: Ending, session: Session, number: int, sent_s: float) -> None:
        name, tokens = f"{session.id}/{number}", session.calls[number].prompt_tokens
        outcome = Outcome(name, session.id, ending, "", sent_s, self._time.now_s, None, tokens, 0, None, None)
        self._ended(outcome, session, number)

    def _place(self, session: Session, name: str, call: Asked) -> Placement | Rejected | HeldCall:
        if session.direct is not None:
            return Direct(self._workers[session.direct])
        return self._gateway.place(name, session.id, call)

    def _ended(self, outcome: Outcome, session: Session, number: int) -> None:
        self.outcomes.append(outcome)
        if number + 1 < len(session.calls):
            self._time.after(session.calls[number + 1].pause_s, self._send, session, number + 1)

    def statistics(self) -> dict[str, int]:
        return {"ended": len(self.outcomes)}
