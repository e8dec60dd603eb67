"""Which prompts run on each worker, as the lifecycle events of a replay tell it."""

from __future__ import annotations

from collections.abc import Sequence

from policies.view import LifecycleEventKind, RequestView, WorkerId


class RunningPrompts:
    """Answers `FleetView.running_share` from the requests that a replay has seen."""

    def __init__(self) -> None:
        self._running: dict[WorkerId, dict[str, Sequence[int]]] = {}

    def clear(self) -> None:
        self._running.clear()

    def observe(self, kind: LifecycleEventKind, worker: WorkerId, request: RequestView) -> None:
        running = self._running.setdefault(worker, {})
        if kind is LifecycleEventKind.RESERVED:
            running[request.id] = request.block_hashes
        elif kind is not LifecycleEventKind.FIRST_TOKEN:
            running.pop(request.id, None)

    def share(self, worker: WorkerId, request: RequestView, blocks: int) -> float:
        running, hashes = self._running.get(worker), request.block_hashes
        if not running or not 0 < blocks <= len(hashes):
            return 0.0
        alike = [len(others) >= blocks and others[blocks - 1] == hashes[blocks - 1] for others in running.values()]
        return sum(alike) / len(alike)
