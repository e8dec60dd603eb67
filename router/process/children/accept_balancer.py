"""Balance client connections over the processes that accept from the same sockets."""

from __future__ import annotations

from router.process.shared_memory.ledger import AcceptCounters, Ledger


class LeastConnections:
    """Let the process with the fewest open connections accept first. Satisfies the gateway's `AcceptOrder`.

    The counters of other processes may be a moment old. Each process knows its own count exactly, and accepts only if
    no other counter is lower. As long as connections only arrive, no two processes differ by more than one.
    """

    def __init__(self, ledger: Ledger, processes: int, process: int) -> None:
        self._ledger = ledger
        self._others = [other for other in range(processes) if other != process]
        self._connections = 0
        self._taken = 0
        self._serving = False

    def open(self) -> None:
        """Start to accept, with a counter that the other processes read."""
        self._serving = True
        self._write()

    def close(self) -> None:
        self._serving = False
        self._write()

    def goes_first(self) -> bool:
        counters = [self._ledger.accept_counters(other) for other in self._others]
        return all(
            self._connections <= accept_counters.connections for accept_counters in counters if accept_counters.serving
        )

    def accepted_by_others(self) -> int:
        """Return the number of connections that other processes have accepted so far. The number changes while they
        accept.
        """
        return sum(self._ledger.accept_counters(other).taken for other in self._others)

    def accepted(self) -> None:
        self._connections += 1
        self._taken += 1
        self._write()

    def closed(self) -> None:
        self._connections -= 1
        self._write()

    def _write(self) -> None:
        self._ledger.write_accept_counters(AcceptCounters(self._serving, self._connections, self._taken))
