"""The metrics of all processes, merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from router.metrics.instruments import Counter, Labels, Reading
from router.telemetry.exposition import OwnProcess
from router.telemetry.logs import lines_dropped
from router.telemetry.snapshot import Snapshot, lasting, merged


class MetricTotals:
    """Add up the metrics of the children, of children that have ended, and of the supervisor.

    A counter must never fall, or its rate is wrong. So for a process that does not answer or has ended, the last answer
    counts. Counts after that answer are lost. `own` returns what the supervisor alone knows.
    """

    def __init__(self, own: Callable[[], Iterable[Reading]] = tuple) -> None:
        self._read_own = own
        self._latest: dict[int, Snapshot] = {}
        self._ended = Snapshot({}, {})
        self._own = OwnProcess()
        self._restarts = 0
        self.reloads = Counter()
        """Reloads of files of the admin port, which the supervisor itself reads."""

    def ended(self, process: int) -> None:
        """Keep the last counters of a process that has ended."""
        latest = self._latest.pop(process, None)
        if latest is not None:
            self._ended = merged([self._ended, lasting(latest)])

    def restarted(self) -> None:
        self._restarts += 1

    def with_latest(self, fresh: Mapping[int, Snapshot]) -> Snapshot:
        """Return the totals, with the latest answers of processes, by their numbers."""
        self._latest |= fresh
        counted: dict[str, dict[Labels, float]] = {
            "warmroute_process_restarts": {(): float(self._restarts)},
            "warmroute_reloads": dict(self.reloads.values),
            "warmroute_log_lines_dropped": {(): float(lines_dropped())},
        }
        for name, labels, value in self._read_own():
            counted.setdefault(name, {})[labels] = value
        own = Snapshot({**self._own.values(), **counted}, {})
        total = merged([own, self._ended, *self._latest.values()])
        total.values["warmroute_processes"] = {(): float(len(fresh))}
        return total
