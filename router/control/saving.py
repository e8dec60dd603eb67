"""Keep the desired state in `state_dir`, if there is one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from router.control.discovered import lasting
from router.control.state_file import NotSavedError, StateFile, Stored
from router.metrics.instruments import Reading

log = logging.getLogger("warmroute.control")


class Saving:
    """Read and write `store` in a thread; without one do nothing."""

    def __init__(self, store: StateFile | None) -> None:
        self._store = store
        self.unsaved: str | None = None
        """Why the last state could not be written; None if it was."""

    @property
    def keeps(self) -> bool:
        """Whether changes outlive the process."""
        return self._store is not None

    async def load(self) -> Stored | None:
        """Return what the file has; raises `ConfigError` if it cannot be used."""
        return None if self._store is None else await asyncio.to_thread(self._store.load)

    def owned(self) -> None:
        """Record that the process which wrote the file so far has handed over its content."""
        if self._store is not None:
            self._store.owned()

    async def save(self, stored: Stored) -> None:
        """Raise `NotSavedError` if the state cannot be written."""
        if self._store is None:
            return
        try:
            await asyncio.to_thread(self._store.save, lasting(stored))
        except NotSavedError as error:
            self.unsaved = str(error)
            raise
        self.unsaved = None

    async def save_or_log(self, stored: Stored) -> None:
        try:
            await self.save(stored)
        except NotSavedError as error:
            log.error("the desired state could not be saved", extra={"reason": str(error)})

    def readings(self) -> Iterator[Reading]:
        """Yield whether the state could not be written, and the files set aside because they could not be used."""
        yield "warmroute_state_problems", ("unsaved",), float(self.unsaved is not None)
        yield "warmroute_state_problems", ("set_aside",), 0 if self._store is None else self._store.set_aside
