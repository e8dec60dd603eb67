"""The channel of the replicas in virtual time: real ledgers, models and messages, and a delay in place of Redis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from loadtest.sim.virtual_time import VirtualTime
from router.placement.shared_load import SharedLedger
from router.process.shared_memory.replica_rows import ReplicaLedger
from router.replicas.fleet_channel import TICK_S, FleetChannel
from router.replicas.fleet_placements import FleetPlacements
from router.residency.residency_map import ResidencyMap

WAY_S = 0.001
"""From the sender's write to the receiver's read: 0.5 ms at the median and 3 ms at p99, through Redis on loopback."""


class VirtualReplica:
    """One gateway's ledger and channel. It shares what it places on workers that `residency` models."""

    def __init__(self, name: str, residency: ResidencyMap) -> None:
        self._shared = ReplicaLedger()
        self.channel = FleetChannel(name, 0, 0.0, self._shared.rows, placements=FleetPlacements(residency))

    @property
    def ledger(self) -> SharedLedger:
        """The ledger for the gateway's dispatcher."""
        return self._shared.ledger

    def close(self) -> None:
        """Release the ledger's memory."""
        self._shared.close()


class VirtualExchange:
    """Replicas that send a message every `FleetChannel.interval_s`, one after the other, and read it after `WAY_S`.

    It goes on while `more` returns true. `messages` and `sent_bytes` count what was published.
    """

    def __init__(self, time: VirtualTime, residencies: Sequence[ResidencyMap], more: Callable[[], bool]) -> None:
        self.replicas = [VirtualReplica(f"replica-{number}", each) for number, each in enumerate(residencies)]
        self.messages = 0
        self.sent_bytes = 0
        self._time = time
        self._more = more
        for number, replica in enumerate(self.replicas):
            time.at(TICK_S * (number + 1) / len(self.replicas), self._send, replica)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for replica in self.replicas:
            replica.close()

    def _send(self, replica: VirtualReplica) -> None:
        if (message := replica.channel.take(self._time.now_s)) is not None:
            self.messages += 1
            self.sent_bytes += len(message)
            self._time.after(WAY_S, self._arrived, message)
        if self._more():
            self._time.after(replica.channel.interval_s(), self._send, replica)

    def _arrived(self, message: bytes) -> None:
        for replica in self.replicas:
            replica.channel.receive(message, self._time.now_s)

    def statistics(self) -> dict[str, int]:
        """Count the messages, those that could not be read, and the placements that were heard and not stored."""
        channels = [replica.channel.statistics() for replica in self.replicas]
        counts = {name: sum(each[name] for each in channels) for name in ("malformed", "placements", "unplaced")}
        return {"messages": self.messages, **counts}
