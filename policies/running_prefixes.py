"""Who runs where with which prompt: how many of a worker's requests begin as another one does."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from policies.view import LifecycleEvent, LifecycleEventKind, RequestView, WorkerId

_KEPT = 65_536
"""Requests remembered, by booking: edges that never come must not fill memory."""

_Key = tuple[WorkerId, str]


class RunningPrefixes:
    """Follows requests from booking to end, with the hashes of their prompts."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._reserved: OrderedDict[_Key, None] = OrderedDict()
        self._running: dict[WorkerId, dict[str, Sequence[int]]] = {}

    def observe(self, event: LifecycleEvent) -> None:
        """Take note of a booking or an end; first tokens do not matter here."""
        if event.kind is LifecycleEventKind.RESERVED:
            key = (event.worker, event.request.id)
            self._reserved[key] = None
            self._running.setdefault(event.worker, {})[event.request.id] = event.request.block_hashes
            if len(self._reserved) > self._kept:
                self._forget(next(iter(self._reserved)))
        elif event.kind is not LifecycleEventKind.FIRST_TOKEN:
            self._forget((event.worker, event.request.id))

    def share(self, worker: WorkerId, request: RequestView, blocks: int) -> float:
        """Of the requests that run on `worker`, the share that begin with the same `blocks` as `request`.

        One comparison for each of them: the hash of a block stands for all before it. 0 where the prompt is shorter.
        """
        running = self._running.get(worker)
        if not running or not 0 < blocks <= len(request.block_hashes):
            return 0.0
        place, wanted = blocks - 1, request.block_hashes[blocks - 1]
        alike = [len(hashes) > place and hashes[place] == wanted for hashes in running.values()]
        return sum(alike) / len(alike)

    def __deepcopy__(self, memo: dict[int, object]) -> RunningPrefixes:
        """Prompts are never changed, so a copy, as is made to explain a decision, has the same ones."""
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
