"""Held requests by the worker that they wait for, and the order in which they are dispatched again."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import islice
from typing import Generic, TypeVar

from policies.view import WorkerId

ASKED_AT_ONCE = 16
"""The most requests that are dispatched again when their worker becomes free; the first one placed there ends the
round. Each costs a decision, and the other requests are dispatched again when their own holds expire."""

T = TypeVar("T", bound=Hashable)


class HeldByWorker(Generic[T]):
    """Held requests by worker, in the order in which they last entered."""

    def __init__(self) -> None:
        self._workers: dict[WorkerId | None, dict[T, None]] = {}
        self._waiting: dict[T, WorkerId | None] = {}

    def enter(self, one: T, worker: WorkerId | None) -> None:
        """Add a request that waits for `worker`; None for no particular worker. It must not be waiting already."""
        self._waiting[one] = worker
        self._workers.setdefault(worker, {})[one] = None

    def leave(self, one: T) -> bool:
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
        """The workers that requests wait for; None stands for no particular worker."""
        return list(self._workers)

    def first(self, worker: WorkerId | None) -> list[T]:
        """Return the requests to dispatch again, in order, now that `worker` is free."""
        return list(islice(self._workers.get(worker, ()), ASKED_AT_ONCE))

    def __iter__(self) -> Iterator[T]:
        return iter(self._waiting)

    def __contains__(self, one: T) -> bool:
        return one in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)
