"""Mistakes in the settings: the place, the problem and the fix. A package's check returns `Finding`s.

`router.settings` collects every package's check.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from router.config.model import Config
from router.config.tree import Path

Finding = tuple[Path, str, str]
"""Place in the settings, problem, fix."""
Check = Callable[[Config], Iterable[Finding]]

_HOST_NAME = re.compile(r"[^\s/:]+|\[?[0-9A-Fa-f:.]+\]?")
_IN_FILE = re.compile(r"(.*):(\d+):(\d+)")


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: `place` is ``file:line:column``, a flag or a variable; `fix` starts with a verb."""

    place: str
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}; {self.fix}"


class ConfigError(Exception):
    """The settings cannot be used. `problems` is never empty, by source and then by line."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def closest(word: str, known: Iterable[str]) -> str | None:
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def in_file_order(problems: Sequence[Problem]) -> list[Problem]:
    """Return problems by source, in the order in which the sources come, and by line and column within a file."""
    sources: dict[str, int] = {}

    def order(one: Problem) -> tuple[int, int, int]:
        found = _IN_FILE.fullmatch(one.place)
        source, line, column = found.groups() if found is not None else (one.place, 0, 0)
        return sources.setdefault(source, len(sources)), int(line), int(column)

    return sorted(problems, key=order)


def is_host(text: str) -> bool:
    """Whether `text` is a host name or an address, without scheme and port."""
    return _HOST_NAME.fullmatch(text) is not None


def in_order(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Sort findings by the order of the settings in the sample file."""
    order = {name: index for index, name in enumerate(Config.__struct_fields__)}
    yield from sorted(findings, key=lambda finding: order[str(finding[0][0])])
