"""Who waits for which worker because the policy says so, and who of them is asked for again first."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import islice
from typing import Generic, TypeVar

from policies.view import WorkerId

ASKED_AT_ONCE = 16
"""Of those that wait for a worker which is free, so many may be asked for again until one goes there: each costs a
decision, and those that are left have their own times."""

T = TypeVar("T", bound=Hashable)


class Deferred(Generic[T]):
    """Whatever waits, by worker, in the order in which it last entered."""

    def __init__(self) -> None:
        self._workers: dict[WorkerId, dict[T, None]] = {}
        self._waiting: dict[T, WorkerId] = {}

    def enter(self, one: T, worker: WorkerId) -> None:
        """`one` is to wait for `worker`; it must not be waiting already."""
        self._waiting[one] = worker
        self._workers.setdefault(worker, {})[one] = None

    def leave(self, one: T) -> bool:
        """`one` waits no longer; False if it did not."""
        worker = self._waiting.pop(one, None)
        if worker is None:
            return False
        others = self._workers[worker]
        del others[one]
        if not others:
            del self._workers[worker]
        return True

    @property
    def workers(self) -> list[WorkerId]:
        """Those that are waited for."""
        return list(self._workers)

    def first(self, worker: WorkerId) -> list[T]:
        """Who is to be asked for again now that `worker` is free, in this order, until one goes there."""
        return list(islice(self._workers.get(worker, ()), ASKED_AT_ONCE))

    def __contains__(self, one: T) -> bool:
        return one in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)
