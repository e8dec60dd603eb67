"""The other replicas, as their messages show them. Pure: the caller brings the time."""

from __future__ import annotations

from dataclasses import dataclass

from router.replicas.messages import FleetMessage, StateVersion

SILENCE_S = 1.0
"""A replica that is silent for longer has left: its rows no longer count."""
MOST_REPLICAS = 1_000
"""Senders that are kept, so that a channel full of nonsense takes no memory. Further ones are not heard."""


@dataclass(slots=True)
class Sender:
    """One sender, by the number of its last message. `missed` are the numbers that did not arrive."""

    started_s: float
    seq: int
    heard_s: float
    state: StateVersion
    missed: int = 0


class Senders:
    """All other processes of the fleet that were heard within `SILENCE_S`."""

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._senders: dict[tuple[str, int], Sender] = {}
        self.missed = 0

    def heard(self, batch: FleetMessage, now_s: float) -> bool:
        """Note a message. Return False for one that is older than the last, or beyond `MOST_REPLICAS`."""
        sender = (batch.replica, batch.process)
        known = self._senders.get(sender)
        if known is None:
            if len(self._senders) >= MOST_REPLICAS:
                return False
            self._senders[sender] = Sender(batch.started_s, batch.seq, now_s, batch.state)
            return True
        if batch.seq <= known.seq:
            return False
        missed = batch.seq - known.seq - 1
        self.missed += missed
        known.missed += missed
        known.seq, known.heard_s, known.state = batch.seq, now_s, batch.state
        return True

    def expire(self, now_s: float) -> list[str]:
        """Forget the silent ones. Return the replicas among them that no longer speak for themselves."""
        silent = [sender for sender, last in self._senders.items() if now_s - last.heard_s > SILENCE_S]
        for sender in silent:
            del self._senders[sender]
        return [replica for replica, process in silent if process == 0]

    @property
    def replicas(self) -> dict[str, Sender]:
        senders = self._senders.items()
        return {replica: last for (replica, process), last in senders if process == 0 and replica != self._replica}

    def __contains__(self, sender: tuple[str, int]) -> bool:
        return sender in self._senders

    def __len__(self) -> int:
        return len(self._senders)
