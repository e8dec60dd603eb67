"""What one process sends to the fleet and hears from it, put together: ledger rows, placements, versions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from router.replicas import messages
from router.replicas.fleet_rows import FleetRows, HostRows
from router.replicas.messages import NOTHING, FleetMessage, StateVersion
from router.replicas.peers import Peers

HEARTBEAT_S = 0.1
"""A replica is never silent for longer."""


class FleetChannel:
    """Make the batches of one process and take in those of others. Pure: the line brings bytes and time.

    Process 0 of a replica has `rows`, and speaks for the replica. The others send only when there is something.
    """

    def __init__(
        self,
        replica: str,
        process: int,
        started_s: float,
        rows: HostRows | None,
        state: Callable[[], StateVersion] = StateVersion,
    ) -> None:
        self.peers = Peers(replica)
        self.malformed = 0
        self.lag_s = 0.0
        """Time that the last own message took to come back."""
        self._sender = (replica, process)
        self._started_s = started_s
        self._rows = FleetRows(rows) if rows is not None else None
        self._state = state
        self._seq = itertools.count(1)
        self._sent: tuple[int, float] = (0, 0.0)
        self._placed: list[messages.Placed] = []

    def take(self, now_s: float) -> bytes | None:
        """Return the next message; None if there is nothing to say yet."""
        self._expire(now_s)
        whole, rows = self._rows.out(now_s) if self._rows is not None else (False, [])
        if not rows and not whole and not self._placed and now_s - self._sent[1] < HEARTBEAT_S:
            return None
        placed, self._placed = self._placed, []
        self._sent = (next(self._seq), now_s)
        return messages.encode(
            FleetMessage(
                *self._sender,
                self._started_s,
                self._sent[0],
                whole,
                messages.packed(rows) if rows else NOTHING,
                messages.packed(placed) if placed else NOTHING,
                self._state(),
                NOTHING,
            )
        )

    def lost(self) -> None:
        """Note that the last message was not sent."""
        if self._rows is not None:
            self._rows.lost()

    def receive(self, message: bytes, now_s: float) -> bool:
        """Take in a message. Return whether it is this process's own. Never raises for any bytes."""
        batch = messages.decode(message)
        if batch is None:
            self.malformed += 1
            return False
        if (batch.replica, batch.process) == self._sender:
            return self._echo(batch, now_s)
        try:
            self._take_in(batch, now_s)
        except (msgspec.MsgspecError, RecursionError):
            self.malformed += 1
        return False

    def _echo(self, batch: FleetMessage, now_s: float) -> bool:
        if batch.started_s != self._started_s:
            return False
        if batch.seq == self._sent[0]:
            self.lag_s = now_s - self._sent[1]
        return True

    def _take_in(self, batch: FleetMessage, now_s: float) -> None:
        rows = messages.rows_of(batch) if self._rows is not None and batch.process == 0 else []
        if batch.replica == self._sender[0] or not self.peers.heard(batch, now_s):
            return
        if self._rows is not None and batch.process == 0:
            self._rows.heard(batch.replica, batch.whole, rows, now_s)

    def _expire(self, now_s: float) -> None:
        for replica in self.peers.expire(now_s):
            if self._rows is not None:
                self._rows.left(replica)

    def statistics(self) -> dict[str, Any]:
        """Return counts and the state of the other replicas."""
        return {
            "replicas": 1 + len(self.peers.replicas),
            "lag_s": self.lag_s,
            "missed": self.peers.missed,
            "malformed": self.malformed,
        }
