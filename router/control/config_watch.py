"""Notice that the settings file has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from router.security.reload import LOOK_S, signature


class ConfigWatch:
    """Look at one file every `LOOK_S`. Call `changed` once it has another content and stayed the same between two
    looks, because an editor writes in steps.
    """

    def __init__(self, file: Path, changed: Callable[[], None]) -> None:
        self._file = str(file)
        self._changed = changed
        self._timer: asyncio.TimerHandle | None = None
        self._read = self._seen = signature((self._file,))

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._tick)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        now = signature((self._file,))
        settled, self._seen = now == self._seen, now
        if settled and now != self._read:
            self._read = now
            self._changed()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._tick)
        self.look()
