"""Reloads that nobody waits for: after a signal, or because the file has changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

from router.config.problems import ConfigError
from router.control.change import HandedOverError, NotAppliedError, Reloaded
from router.control.state.pending import pending_lines
from router.control.state_file import NotSavedError
from router.security.reload import FileWatch

log = logging.getLogger("warmroute.control")

_KEPT = "settings not reloaded, the old ones stay"


class BackgroundReloads:
    """Calls `reload`, and logs how it ends. `processes` is that of the running gateway."""

    def __init__(self, reload: Callable[[], Awaitable[Reloaded]], processes: int | Literal["auto"]) -> None:
        self.running: set[asyncio.Task[None]] = set()
        self._reload = reload
        self._processes = processes
        self._files = FileWatch()

    def soon(self, why: str) -> None:
        task = asyncio.ensure_future(self._reload_and_log(why))
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    def watch(self, file: Path) -> None:
        """Reload whenever `file` has changed."""
        self._files.watch((str(file),), lambda: self.soon("the file has changed"))
        self._files.start()

    def close(self) -> None:
        self._files.close()

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
            for conflict in found.conflicts:
                log.warning("a change of the admin API was replaced", extra={"reason": str(conflict)})
            for line in pending_lines(found.pending, self._processes):
                log.warning("a changed setting does not take effect", extra={"reason": line})
            fields = {"why": why, "version": found.outcome.state.version, "changes": len(found.outcome.differences)}
            log.info("settings reloaded", extra=fields)
