"""A memory cgroup (v1 or v2) that limits and measures the memory of a child process and its children together.

An address-space limit (RLIMIT_AS) cannot replace it. That limit counts reserved instead of used memory. It also fails
allocations in cases where the kernel would end the process.
"""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path("/sys/fs/cgroup")
_REMOVE_LIMIT_S = 10.0


class NoMemoryGroup(RuntimeError):
    """No memory cgroup can be created; the message has the reason."""


@dataclass(frozen=True, slots=True)
class _Names:
    """File names of one cgroup version."""

    limit: str
    swap: str
    swap_value: str
    """Value for the file `swap`: v1 limits memory and swap together, v2 swap alone.

    ``{limit}`` stands for the limit.
    """
    peak: str
    kills: str
    """Name of the file that contains a line ``oom_kill N``."""


_V1 = _Names(
    "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "{limit}", "memory.max_usage_in_bytes", "memory.oom_control"
)
_V2 = _Names("memory.max", "memory.swap.max", "0", "memory.peak", "memory.events")


class MemoryGroup:
    """A new cgroup with a limit. It is removed at the end of a ``with``, after its processes have ended.

    Raises:
        NoMemoryGroup: it cannot be created.
    """

    def __init__(self, limit_bytes: int, root: Path = ROOT) -> None:
        self.limit_bytes = limit_bytes
        self._folder, self._names = _make(limit_bytes, root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command that starts `command` inside the group."""
        return ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self._folder / "cgroup.procs"), *command]

    @property
    def peak_bytes(self) -> int | None:
        """Highest memory use, including page cache, or None if the kernel does not report it."""
        with suppress(OSError):
            return int((self._folder / self._names.peak).read_text())
        return None

    @property
    def kills(self) -> int:
        """Number of processes that the kernel ended because the limit was reached."""
        for line in (self._folder / self._names.kills).read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return 0

    def remove(self) -> None:
        """Remove the group; a second call does nothing. A group with running processes is kept."""
        end_s = time.monotonic() + _REMOVE_LIMIT_S
        while self._folder.exists():
            with suppress(OSError):
                self._folder.rmdir()
                return
            if time.monotonic() > end_s:
                return
            time.sleep(0.05)


def _make(limit_bytes: int, root: Path) -> tuple[Path, _Names]:
    reasons = []
    for parent, names in _parents(root):
        folder = parent / f"warmroute-{os.getpid()}-{time.monotonic_ns()}"
        try:
            folder.mkdir()
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror}")
            continue
        try:
            (folder / names.limit).write_text(str(limit_bytes))
            _try_to_enter(folder)
        except OSError as error:
            folder.rmdir()
            reasons.append(f"{folder}: {error.strerror}")
            continue
        with suppress(OSError):  # a kernel without swap accounting has no such file
            (folder / names.swap).write_text(names.swap_value.format(limit=limit_bytes))
        return folder, names
    raise NoMemoryGroup("no memory cgroup can be made: " + ("; ".join(reasons) or f"{root} has no memory controller"))


def _try_to_enter(folder: Path) -> None:
    """Start a program in the group. The kernel may refuse that even for a group that it let us create.

    Raises:
        OSError: no process may enter the group.
    """
    procs = folder / "cgroup.procs"
    entered = subprocess.run(["/bin/sh", "-c", 'echo $$ >"$0"', str(procs)], capture_output=True, check=False)
    if entered.returncode != 0:
        raise OSError(errno.EPERM, f"no process may enter: {entered.stderr.decode(errors='replace').strip()}")


def _parents(root: Path) -> Iterator[tuple[Path, _Names]]:
    """Yield the groups that can hold a new one: our own and its ancestors, up to the root of the memory hierarchy."""
    own: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own.update(dict.fromkeys(controllers.split(","), path))
    if (root / "memory" / _V1.limit).exists():
        yield from ((each, _V1) for each in _upwards(root / "memory", own.get("memory", "/")))
    if (root / "cgroup.controllers").exists():
        yield from ((each, _V2) for each in _upwards(root, own.get("", "/")))


def _upwards(top: Path, path: str) -> Iterator[Path]:
    place = top / path.lstrip("/")
    while place != top:
        if place.is_dir():
            yield place
        place = place.parent
    yield top
