"""Reload files that have changed, off the path of requests."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from router.metrics.instruments import Counter

log = logging.getLogger("warmroute.security")

LOOK_S = 1.0
"""Interval of the checks. A changed file is read at the next check if it stayed the same until then.

Writing a certificate and its key takes a moment.
"""

Signature = tuple[tuple[int, ...] | None, ...]
"""A value that identifies the content of files, with None for a missing file. For a link it describes the target,
because Kubernetes replaces links.
"""


class ReloadableFiles(Protocol):
    @property
    def files(self) -> tuple[str, ...]: ...

    def load(self) -> None:
        """Read the files again. Raise if a file cannot be used, and keep the old content."""


@dataclass(slots=True)
class _Watched:
    files: tuple[str, ...]
    changed: Callable[[], None]
    read: Signature
    seen: Signature


class FileWatch:
    """Reload objects when their files change. A failure is logged, and the old content stays. `reloads` counts
    both."""

    def __init__(self, reloads: Counter | None = None) -> None:
        self._reloads = Counter() if reloads is None else reloads
        self._watched: list[_Watched] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, what: str, loaded: ReloadableFiles | None) -> None:
        """Watch the files of `loaded`, named `what` in logs and metrics."""
        if loaded is not None and loaded.files:
            self.watch(loaded.files, lambda: self._read(what, loaded))

    def watch(self, files: tuple[str, ...], changed: Callable[[], None]) -> None:
        """Call `changed` once the files have another content and stayed the same between two looks."""
        now = signature(files)
        self._watched.append(_Watched(files, changed, now, now))

    def start(self) -> None:
        """Start to check on the running loop, if there is a file to check."""
        if self._watched:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._tick)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        for watched in self._watched:
            now = signature(watched.files)
            settled, watched.seen = now == watched.seen, now
            if settled and now != watched.read:
                watched.read = now
                watched.changed()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._tick)
        self.look()

    def _read(self, what: str, loaded: ReloadableFiles) -> None:
        fields = {"what": what, "files": ", ".join(loaded.files)}
        try:
            loaded.load()
        except Exception as error:  # after any error the old content stays in use
            log.error("changed file cannot be used, the old content stays", extra={**fields, "reason": str(error)})
            outcome = "failed"
        else:
            log.info("changed file read again", extra=fields)
            outcome = "ok"
        self._reloads.add(1.0, (what, outcome))


def signature(paths: tuple[str, ...]) -> Signature:
    """Return a value that changes when one of the files does."""
    return tuple(map(_of_file, paths))


def _of_file(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    # ctime too: a file that has become readable is read again
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
