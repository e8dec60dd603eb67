"""The prompts that run on each worker, and how many of them share a prefix."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from policies.view import LifecycleEvent, LifecycleEventKind, RequestView, WorkerId

_KEPT = 65_536
"""The most requests remembered; the oldest reservation is forgotten first. Otherwise missing end events would fill
memory."""

_Key = tuple[WorkerId, str]


class RunningPrefixes:
    """Follow requests from reservation to end, with the hashes of their prompts."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._reserved: OrderedDict[_Key, None] = OrderedDict()
        self._running: dict[WorkerId, dict[str, Sequence[int]]] = {}

    def observe(self, event: LifecycleEvent) -> None:
        """Record a reservation or an end; ignore first tokens."""
        if event.kind is LifecycleEventKind.RESERVED:
            key = (event.worker, event.request.id)
            self._reserved[key] = None
            self._running.setdefault(event.worker, {})[event.request.id] = event.request.block_hashes
            if len(self._reserved) > self._kept:
                self._forget(next(iter(self._reserved)))
        elif event.kind is not LifecycleEventKind.FIRST_TOKEN:
            self._forget((event.worker, event.request.id))

    def share(self, worker: WorkerId, request: RequestView, blocks: int) -> float:
        """Return the share of the worker's running requests that begin with the same `blocks` as `request`.

        One comparison for each running request is enough, because the hash of a block stands for all blocks before it.
        The share is 0 if the prompt is shorter than `blocks`.
        """
        running = self._running.get(worker)
        if not running or not 0 < blocks <= len(request.block_hashes):
            return 0.0
        place, wanted = blocks - 1, request.block_hashes[blocks - 1]
        alike = [len(hashes) > place and hashes[place] == wanted for hashes in running.values()]
        return sum(alike) / len(alike)

    def __deepcopy__(self, memo: dict[int, object]) -> RunningPrefixes:
        """Copy the maps but not the prompts, which never change. `explain` decides on such a copy."""
        copy = RunningPrefixes(self._kept)
        copy._reserved = self._reserved.copy()
        copy._running = {worker: running.copy() for worker, running in self._running.items()}
        return copy

    def _forget(self, key: _Key) -> None:
        if key not in self._reserved:
            return
        del self._reserved[key]
        worker, request = key
        running = self._running[worker]
        del running[request]
        if not running:
            del self._running[worker]
