"""How two trees of settings differ, path by path."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from router.config import model
from router.config.model import SECRETS, STRUCK_OUT
from router.control.state.desired_state import Tree

Path = tuple[str, ...]
WHOLE: tuple[Path, ...] = (
    ("policy",),
    ("policies", "*"),
    ("routes",),
    ("limits", "tenants", "*"),
    ("limits", "keys", "*"),
)
"""Paths whose value changes as one: parameters belong to their rule, routes to their order, and a burst to its rate.
`*` is any name."""
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMED = frozenset({("workers",), ("policies",), ("models",), ("tenants",), ("limits", "tenants"), ("limits", "keys")})
"""Paths of settings whose keys are names that operators choose."""


class SettingDifference(msgspec.Struct, frozen=True, omit_defaults=True):
    """One path with its values in two trees. A value that is not set is not in that tree."""

    path: Path
    before: Any = UNSET
    after: Any = UNSET

    @property
    def inverse(self) -> SettingDifference:
        return SettingDifference(self.path, self.after, self.before)

    @property
    def place(self) -> str:
        """The path as text, as in ``workers[10.0.0.1:8000].labels.lane``."""
        return path_text(self.path)

    def __str__(self) -> str:
        """Return ``path: before -> after``. Secrets are not shown."""
        return f"{self.place}: {_shown(self.path, self.before)} -> {_shown(self.path, self.after)}"


def differences(before: Tree, after: Tree, *, whole: Sequence[Path] = ()) -> tuple[SettingDifference, ...]:
    """Return every difference, in the order of the keys. Paths in `whole` are compared as one value."""
    return tuple(_compare((), before, after, whole))


def applied(tree: Tree, changes: Iterable[SettingDifference]) -> Tree:
    """Return a copy of `tree` with the later value of every difference."""
    copy = _copied(tree)
    for change in changes:
        _put(copy, change.path, change.after)
    return copy


def undone(tree: Tree, changes: Sequence[SettingDifference]) -> Tree:
    """Return a copy of `tree` with the earlier value of every difference."""
    return applied(tree, [change.inverse for change in reversed(changes)])


def value_at(tree: Tree, path: Path) -> Any:
    """Return the value at `path`; UNSET if there is none."""
    value: Any = tree
    for step in path:
        if not isinstance(value, dict) or step not in value:
            return UNSET
        value = value[step]
    return value


def path_text(path: Path) -> str:
    """Return a path as text. Names that operators choose are in brackets."""
    text = ""
    for position, step in enumerate(path):
        named = path[:position] in _NAMED
        text += f".{step}" if _PLAIN.fullmatch(step) and not named else f"[{step}]"
    return text.removeprefix(".")


def without_secrets(path: Path, value: Any) -> Any:
    """Return the value at `path` with every secret struck out."""
    hidden = path and path[-1] in SECRETS and value is not UNSET and value is not None
    return STRUCK_OUT if hidden else model.without_secrets(value)


def _compare(path: Path, before: Any, after: Any, whole: Sequence[Path]) -> Iterator[SettingDifference]:
    if before == after:
        return
    if not isinstance(before, dict) or not isinstance(after, dict) or _is_whole(path, whole):
        yield SettingDifference(path, before, after)
        return
    for key in [*before, *(key for key in after if key not in before)]:
        yield from _compare((*path, key), before.get(key, UNSET), after.get(key, UNSET), whole)


def _is_whole(path: Path, whole: Sequence[Path]) -> bool:
    return path in whole or (bool(path) and (*path[:-1], "*") in whole)


def _copied(tree: Tree) -> Tree:
    return {key: _copied(value) if isinstance(value, dict) else value for key, value in tree.items()}


def _put(tree: Tree, path: Path, value: Any) -> None:
    """Set or remove the value at `path` in place."""
    *above, last = path
    for step in above:
        below = tree.get(step)
        if not isinstance(below, dict):
            if value is UNSET:
                return
            below = tree[step] = {}
        tree = below
    if value is UNSET:
        tree.pop(last, None)
    else:
        tree[last] = value


def _shown(path: Path, value: Any) -> str:
    return "nothing" if value is UNSET else json.dumps(without_secrets(path, value), default=str, ensure_ascii=False)
