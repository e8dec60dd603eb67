"""How a package reports mistakes in its settings. `router.settings` collects every package's check."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from router.config.model import Config
from router.config.tree import Path

Finding = tuple[Path, str, str]
"""Place in the settings, problem, fix."""
Check = Callable[[Config], Iterable[Finding]]

_HOST_NAME = re.compile(r"[^\s/:]+|\[?[0-9A-Fa-f:.]+\]?")


def is_host(text: str) -> bool:
    """Whether `text` is a host name or an address, without scheme and port."""
    return _HOST_NAME.fullmatch(text) is not None


def in_order(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Sort findings by the order of the settings in the sample file."""
    order = {name: index for index, name in enumerate(Config.__struct_fields__)}
    yield from sorted(findings, key=lambda finding: order[str(finding[0][0])])
