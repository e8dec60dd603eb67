"""Whose turn it is to take the next client connection."""

from __future__ import annotations

from router.process.shared_memory.ledger import AcceptCounters, Ledger


class LeastConnections:
    """Has the process with the fewest open connections go first.

    It satisfies `router.gateway.listen.connection_limit.AcceptOrder`.

    What it reads of the others may be a moment old. But each knows its own count, and takes a connection only where it
    has read that nobody has fewer: so while connections only come, no two processes differ by more than one.
    """

    def __init__(self, ledger: Ledger, processes: int, process: int) -> None:
        self._ledger = ledger
        self._others = [other for other in range(processes) if other != process]
        self._connections = 0
        self._taken = 0
        self._serving = False

    def open(self) -> None:
        """We begin to take connections."""
        self._serving = True
        self._write()

    def close(self) -> None:
        """We take no more."""
        self._serving = False
        self._write()

    def goes_first(self) -> bool:
        """Whether nobody who takes connections has fewer than we do."""
        counters = [self._ledger.accept_counters(other) for other in self._others]
        return all(
            self._connections <= accept_counters.connections for accept_counters in counters if accept_counters.serving
        )

    def accepted_by_others(self) -> int:
        """How many the others have ever taken: it changes while they take any."""
        return sum(self._ledger.accept_counters(other).taken for other in self._others)

    def accepted(self) -> None:
        """We have just taken one."""
        self._connections += 1
        self._taken += 1
        self._write()

    def closed(self) -> None:
        """One of ours has closed."""
        self._connections -= 1
        self._write()

    def statistics(self) -> dict[str, int]:
        """Connections open, and ever taken."""
        return {"connections": self._connections, "taken": self._taken}

    def _write(self) -> None:
        self._ledger.write_accept_counters(AcceptCounters(self._serving, self._connections, self._taken))
