"""Workers that register themselves at this gateway, each with a lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from backends.discovery.registration import LEASE_S, Registration
from backends.discovery.report import MOST_WORKERS, SourceReport

LOOK_S = 0.5


class NoRoomError(Exception):
    """There are as many registrations as a source may have."""


class RegisteredSource:
    """Keep each registration until its lease ends. `now_s` is a monotonic clock.

    After a start the source is complete once every worker has had the time to renew its registration.
    """

    kind = "registered"

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._registered: dict[str, tuple[Registration, float]] = {}
        self._changed = asyncio.Event()

    def holds(self, registration: Registration) -> bool:
        found = self._registered.get(registration.worker_id)
        return found is not None and found[0] == registration

    def register(self, registration: Registration, ttl_s: float) -> bool:
        """Add a worker, or renew its lease. Return whether it is new.

        Raises:
            NoRoomError: it is new, and there is no room.
        """
        name = registration.worker_id
        before = self._registered.get(name)
        if before is None and len(self._registered) >= MOST_WORKERS:
            raise NoRoomError(f"{MOST_WORKERS} workers are registered already")
        self._registered[name] = registration, self._now_s() + ttl_s
        if before is None or before[0] != registration:
            self._changed.set()
        return before is None

    def deregister(self, name: str) -> bool:
        found = self._registered.pop(name, None)
        self._changed.set()
        return found is not None

    async def run(self, report: SourceReport) -> None:
        complete_s = self._now_s() + LEASE_S
        while True:
            self._changed.clear()
            now_s = self._now_s()
            self._registered = {name: one for name, one in self._registered.items() if one[1] > now_s}
            workers = {name: registration for name, (registration, _) in self._registered.items()}
            report.answer(workers, complete=now_s >= complete_s)
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
