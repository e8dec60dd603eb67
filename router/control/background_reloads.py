"""Reloads that nobody waits for: after a signal, or because the file has changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

from router.config.problems import ConfigError
from router.control.change import HandedOverError, NotAppliedError, Reloaded
from router.control.change_log import log_reload
from router.control.config_watch import ConfigWatch
from router.control.state_file import NotSavedError

log = logging.getLogger("warmroute.control")

_KEPT = "settings not reloaded, the old ones stay"


class BackgroundReloads:
    """Calls `reload`, and logs how it ends. `processes` is that of the running gateway."""

    def __init__(self, reload: Callable[[], Awaitable[Reloaded]], processes: int | Literal["auto"]) -> None:
        self.running: set[asyncio.Task[None]] = set()
        self._reload = reload
        self._processes = processes
        self._watch: ConfigWatch | None = None

    def soon(self, why: str) -> None:
        task = asyncio.ensure_future(self._reload_and_log(why))
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    def watch(self, file: Path) -> None:
        """Reload whenever `file` has changed."""
        self._watch = ConfigWatch(file, lambda: self.soon("the file has changed"))
        self._watch.start()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    async def _reload_and_log(self, why: str) -> None:
        try:
            found = await self._reload()
        except ConfigError as error:
            for problem in error.problems:
                log.error(_KEPT, extra={"why": why, "reason": str(problem)})
        except (HandedOverError, NotAppliedError, NotSavedError) as error:
            log.error(_KEPT, extra={"why": why, "reason": str(error) or "another process has taken over"})
        except Exception as error:  # for one, no process of several serves now
            log.exception(_KEPT, extra={"why": why, "reason": str(error)})
        else:
            log_reload(why, found, self._processes)
