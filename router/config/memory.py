"""The memory that this process may use: the limit of its control group, or half of the machine's memory.

Control groups: https://docs.kernel.org/admin-guide/cgroup-v2.html (``memory.max``) and
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html (``memory.limit_in_bytes``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_KIBIBYTE = 1024
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """`source` is cgroup v2, cgroup v1, or half of RAM."""

    size_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    """A mounted tree of control groups that limits memory: `folder` shows the group `top` and those below it."""

    folder: Path
    top: PurePosixPath
    version: int

    @property
    def file_name(self) -> str:
        return "memory.max" if self.version == 2 else "memory.limit_in_bytes"


def memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """Return the memory that this process may use; None if the system does not report its memory.

    A limit above the machine's memory is ignored. `root` stands for / in tests.
    """
    ram_bytes = _ram_bytes(root)
    found = [
        MemoryLimit(size_bytes, f"cgroup v{hierarchy.version}")
        for hierarchy in _hierarchies(root)
        for size_bytes in _limits(hierarchy, _group(root, hierarchy.version))
        if ram_bytes is None or size_bytes < ram_bytes
    ]
    if found:
        return min(found, key=lambda limit: limit.size_bytes)
    return MemoryLimit(ram_bytes // 2, "half of RAM") if ram_bytes is not None else None


def _ram_bytes(root: Path) -> int | None:
    for line in _lines(root / "proc/meminfo"):
        name, _, rest = line.partition(":")
        words = rest.split()
        if name == "MemTotal" and words and words[0].isdecimal():
            return int(words[0]) * _KIBIBYTE
    return None


def _hierarchies(root: Path) -> Iterator[_Hierarchy]:
    """Return the hierarchies that can limit memory.

    The lines of proc(5)'s mountinfo look like ``36 35 98:0 /top /folder options - type ...``.
    """
    for line in _lines(root / "proc/self/mountinfo"):
        mount, _, kind = line.partition(" - ")
        words, kind_words = [_unescaped(word) for word in mount.split(" ")], kind.split(" ")
        if len(words) < 5:
            continue
        folder, top = root / words[4].lstrip("/"), PurePosixPath(words[3])
        if kind_words[0] == "cgroup2":
            yield _Hierarchy(folder, top, 2)
        elif kind_words[0] == "cgroup" and "memory" in kind_words[-1].split(","):
            yield _Hierarchy(folder, top, 1)


def _group(root: Path, version: int) -> PurePosixPath:
    """Return the control group of this process, from lines such as ``4:memory:/group`` (v1) and ``0::/group`` (v2)."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if (number == "0" and not controllers) if version == 2 else ("memory" in controllers.split(",")):
            return PurePosixPath(group)
    return PurePosixPath("/")


def _limits(hierarchy: _Hierarchy, group: PurePosixPath) -> Iterator[int]:
    """Return the limits of `group` and of every visible group above it: each of them applies.

    A container may see its own group mounted as the top, under a name that is valid only outside.
    """
    below = group.relative_to(hierarchy.top) if group.is_relative_to(hierarchy.top) else PurePosixPath()
    if ".." in below.parts:
        below = PurePosixPath()
    for part in (below, *below.parents):
        for line in _lines(hierarchy.folder / part / hierarchy.file_name):
            if line.isdecimal():
                yield int(line)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _unescaped(word: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), word)
