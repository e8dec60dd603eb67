"""Clients that play their sessions: through the gateway, or past it."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.sim.exchange import Direct, Exchange, Placement
from loadtest.sim.gateway import Rejected, SimulatedGateway
from loadtest.sim.outcome import Ending, Outcome
from loadtest.sim.sessions import Asked, Session
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker


class Clients:
    """Sends every session's calls in order, each after the end of the one before; collects `outcomes` as they end."""

    def __init__(
        self, time: VirtualTime, gateway: SimulatedGateway, workers: Sequence[EngineWorker], request_s: float
    ) -> None:
        self.outcomes: list[Outcome] = []
        self._time = time
        self._gateway = gateway
        self._workers = workers
        self._request_s = request_s

    def play(self, session: Session) -> None:
        """Let a session begin at its time."""
        self._time.at(session.start_s, self._send, session, 0)

    def _send(self, session: Session, number: int) -> None:
        call, name = session.calls[number], f"{session.id}/{number}"
        placed = self._place(session, name, call)
        if isinstance(placed, Rejected):
            self._ended(_rejected(session, name, call, self._time.now_s), session, number)
            return
        Exchange(
            self._time,
            name,
            session.id,
            call,
            placed,
            self._request_s,
            lambda outcome: self._ended(outcome, session, number),
        )

    def _place(self, session: Session, name: str, call: Asked) -> Placement | Rejected:
        if session.direct is not None:
            return Direct(self._workers[session.direct])
        return self._gateway.place(name, session.id, call)

    def _ended(self, outcome: Outcome, session: Session, number: int) -> None:
        self.outcomes.append(outcome)
        if number + 1 < len(session.calls):
            self._time.after(session.calls[number + 1].pause_s, self._send, session, number + 1)

    def statistics(self) -> dict[str, int]:
        """Calls that have ended."""
        return {"ended": len(self.outcomes)}


def _rejected(session: Session, name: str, call: Asked, now_s: float) -> Outcome:
    prompt_tokens = call.prompt_tokens
    return Outcome(name, session.id, Ending.REJECTED, "", now_s, now_s, None, prompt_tokens, 0, None, None)
