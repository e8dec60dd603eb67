"""What one process sends to the fleet and hears from it, put together: load, use of limits, placements, versions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import msgspec

from router.metrics.instruments import Reading
from router.replicas import messages
from router.replicas.fleet_placements import FleetPlacements
from router.replicas.fleet_rows import FleetRows, HostRows
from router.replicas.fleet_use import FleetUse
from router.replicas.messages import NOTHING, FleetMessage, StateVersion, Uses
from router.replicas.senders import SILENCE_S, Senders

TICK_S = 0.02
"""The least time between two messages. Messages cost, not what is in them: at 5 ms Redis takes twice the CPU time."""
SENDERS_PER_TICK = 4
"""With more senders the time between two messages grows, up to `HEARTBEAT_S`, since each of them reads all messages:
200 a second, up to 20 senders."""
HEARTBEAT_S = 0.1
"""A replica with nothing to say sends at the first message time after this."""
PLACING_HEARTBEAT_S = 0.4
"""The same for a process that sends placements alone."""


class FleetChannel:
    """Make the batches of one process and take in those of others. Pure: the line brings bytes and time.

    Process 0 of a replica has `rows` and `use`, and speaks for the replica. The others send and hear placements
    alone.
    """

    def __init__(
        self,
        replica: str,
        process: int,
        started_s: float,
        rows: HostRows | None,
        state: Callable[[], StateVersion] = StateVersion,
        use: FleetUse | None = None,
        placements: FleetPlacements | None = None,
    ) -> None:
        self.senders = Senders(replica)
        self.malformed = 0
        self.lag_s = 0.0
        """Time that the last own message took to come back."""
        self._sender = (replica, process)
        self._started_s = started_s
        self._rows = FleetRows(rows) if rows is not None else None
        self._use = use
        self._state = state
        self._seq = itertools.count(1)
        self._sent: tuple[int, float] = (0, 0.0)
        self._placements = placements
        self._heartbeat_s = HEARTBEAT_S if process == 0 else PLACING_HEARTBEAT_S
        self._echo_s = self._since_s = -math.inf
        """Time of the last own message that came back, and of the first one without a gap."""
        self._size = 1
        """Replicas of the fleet, as of the last message that arrived."""

    def take(self, now_s: float) -> bytes | None:
        """Return the next message; None if there is nothing to say yet."""
        self._expire(now_s)
        whole, rows = self._rows.out(now_s) if self._rows is not None else (False, [])
        placed = self._placements.out(now_s) if self._placements is not None else []
        uses = self._uses(now_s)
        parts = (
            messages.packed(rows) if rows else NOTHING,
            messages.packed(placed) if placed else NOTHING,
            messages.packed(uses) if uses.rows or uses.whole else NOTHING,
        )
        said = whole or any(part is not NOTHING for part in parts)
        if not said and now_s - self._sent[1] < self._heartbeat_s:
            return None
        self._sent = (next(self._seq), now_s)
        loads, placements, use = parts
        return messages.encode(
            FleetMessage(*self._sender, self._started_s, self._sent[0], whole, loads, placements, self._state(), use)
        )

    def _uses(self, now_s: float) -> Uses:
        if self._use is None:
            return Uses()
        alone = now_s - self._echo_s > SILENCE_S
        return self._use.out(now_s, self._sent[0] + 1, self._size if alone else 0)

    def interval_s(self) -> float:
        """Return the time between two messages, a multiple of `TICK_S`."""
        return min(HEARTBEAT_S, TICK_S * math.ceil((1 + len(self.senders)) / SENDERS_PER_TICK))

    def lost(self) -> None:
        for part in (self._rows, self._use):
            if part is not None:
                part.lost()

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
        if now_s - self._echo_s > SILENCE_S:
            self._since_s = now_s
        self._echo_s = now_s
        size = 1 + len(self.senders.replicas)
        # those that are silent right after a break may have lost Redis, too
        self._size = size if now_s - self._since_s > SILENCE_S else max(self._size, size)
        return True

    def _take_in(self, batch: FleetMessage, now_s: float) -> None:
        rows = messages.ROWS.decode(batch.rows) if self._rows is not None and batch.process == 0 else []
        uses = messages.USES.decode(batch.use) if self._use is not None and batch.process == 0 else None
        placed = messages.PLACED.decode(batch.placed) if self._placements is not None else []
        known = (batch.replica, batch.process) in self.senders
        if not self.senders.heard(batch, now_s):
            return
        if self._placements is not None:
            self._placements.heard(placed, now_s, new=not known)
        if batch.replica == self._sender[0]:
            return
        self._size = max(self._size, 1 + len(self.senders.replicas))
        if self._rows is not None and batch.process == 0:
            self._rows.heard(batch.replica, batch.whole, rows, now_s)
        if self._use is not None and uses is not None:
            self._use.heard(batch.replica, batch.seq, uses, now_s)

    def readings(self) -> Iterator[Reading]:
        if self._rows is not None:
            yield "warmroute_replica_faults", ("missed",), self.senders.missed
            refused = 0 if self._use is None else self._use.refused
            yield "warmroute_replica_faults", ("malformed",), self.malformed + refused
        if self._placements is not None:
            yield "warmroute_replica_faults", ("unplaced",), self._placements.unplaced
            yield "warmroute_replica_faults", ("dropped",), self._placements.dropped

    def _expire(self, now_s: float) -> None:
        for replica in self.senders.expire(now_s):
            for part in (self._rows, self._use):
                if part is not None:
                    part.left(replica)
