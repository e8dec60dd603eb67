"""Who waits because the policy says so, for which worker, and who of them is asked for again first."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import islice
from typing import Generic, TypeVar

from policies.view import WorkerId

ASKED_AT_ONCE = 16
"""Of those that wait for a worker which is free, so many may be asked for again until one goes there: each costs a
decision, and those that are left have their own times."""

T = TypeVar("T", bound=Hashable)


class HeldByWorker(Generic[T]):
    """Whatever waits, by worker, in the order in which it last entered."""

    def __init__(self) -> None:
        self._workers: dict[WorkerId | None, dict[T, None]] = {}
        self._waiting: dict[T, WorkerId | None] = {}

    def enter(self, one: T, worker: WorkerId | None) -> None:
        """`one` is to wait for `worker`, or for none of them; it must not be waiting already."""
        self._waiting[one] = worker
        self._workers.setdefault(worker, {})[one] = None

    def leave(self, one: T) -> bool:
        """`one` waits no longer; False if it did not."""
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
        """Those that are waited for; None is who waits for none."""
        return list(self._workers)

    def first(self, worker: WorkerId | None) -> list[T]:
        """Who is to be asked for again now that `worker` is free, in this order, until one goes there."""
        return list(islice(self._workers.get(worker, ()), ASKED_AT_ONCE))

    def __contains__(self, one: T) -> bool:
        return one in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)
