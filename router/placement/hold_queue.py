"""Held requests by the worker they wait for, and the order in which they are decided again."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import islice
from typing import Generic, TypeVar

from policies.view import WorkerId

ASKED_AT_ONCE = 16
"""Requests that may be decided again when their worker becomes free, until one goes there. Each costs a decision,
and the rest have times of their own."""

T = TypeVar("T", bound=Hashable)


class HeldByWorker(Generic[T]):
    """Held requests by worker, in the order in which they last entered."""

    def __init__(self) -> None:
        self._workers: dict[WorkerId | None, dict[T, None]] = {}
        self._waiting: dict[T, WorkerId | None] = {}

    def enter(self, one: T, worker: WorkerId | None) -> None:
        """Add a request that waits for `worker`, or for none in particular. It must not be waiting already."""
        self._waiting[one] = worker
        self._workers.setdefault(worker, {})[one] = None

    def leave(self, one: T) -> bool:
        """Remove a request; return False if it was not waiting."""
        if one not in self._waiting:
            return False
        worker = self._waiting.pop(one)
        others = self._workers[worker]
        del others[one]
        if not others:
            del self._workers[worker]
        return True

    @property
    def workers(self) -> list[WorkerId | None]:
        """The workers that requests wait for; None stands for requests that wait for no worker in particular."""
        return list(self._workers)

    def first(self, worker: WorkerId | None) -> list[T]:
        """Return the requests to decide again, in order, now that `worker` is free."""
        return list(islice(self._workers.get(worker, ()), ASKED_AT_ONCE))

    def __contains__(self, one: T) -> bool:
        return one in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)
