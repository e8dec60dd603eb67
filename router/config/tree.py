"""Values with the place where they were written, and paths to settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]
"""From the root of the settings to a value: keys and list positions."""


@dataclass(frozen=True, slots=True)
class Located:
    """A value as written: a scalar, a list of `Located` or a dict from key to `Located`.

    `place` is ``file:line:column``, a flag or a variable.
    """

    value: Any
    place: str


def located(value: Any, place: str) -> Located:
    """Return plain nested lists and dicts as a tree, all at one place."""
    if isinstance(value, dict):
        return Located({str(key): located(item, place) for key, item in value.items()}, place)
    if isinstance(value, list | tuple):
        return Located([located(item, place) for item in value], place)
    return Located(value, place)


def plain(node: Located) -> Any:
    """Return the value without places."""
    if isinstance(node.value, dict):
        return {key: plain(item) for key, item in node.value.items()}
    if isinstance(node.value, list):
        return [plain(item) for item in node.value]
    return node.value


def dotted(path: Path) -> str:
    """Return ``workers[0].url`` for ``("workers", 0, "url")``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def insert(root: Located, path: tuple[str, ...], node: Located) -> None:
    """Put `node` at `path` below `root` and make the mappings between; replace a scalar on the way."""
    here = root.value
    for step in path[:-1]:
        below = here.get(step)
        if below is None or not isinstance(below.value, dict):
            below = here[step] = Located({}, node.place)
        here = below.value
    here[path[-1]] = node
