"""Read KEY=VALUE arguments as a merge patch of settings, each by the type of its setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from router.cli.options import pairs
from router.config.problems import ConfigError
from router.config.schema import type_at
from router.config.sources.text import from_text
from router.config.tree import Located, insert
from router.config.typed import TypedTree


def merge_patch(section: tuple[str, ...], texts: Sequence[str]) -> dict[str, Any]:
    """Return the patch (RFC 7396) of the settings at `section`. A key may be dotted; no value takes its setting back.

    Raises:
        ConfigError: names every text that is not KEY=VALUE, unknown setting, and value of the wrong type.
    """
    tree, taken_back = Located({}, ""), []
    for key, text in pairs("KEY=VALUE", texts).items():
        path, place = (*section, *key.split(".")), f"{key}={text}"
        kind = type_at(path)
        if kind is not None and not text:
            taken_back.append(path)
        else:
            insert(tree, path, Located(text, place) if kind is None else from_text(kind, text, place))
    reading = TypedTree(tree)
    if reading.problems:
        raise ConfigError(reading.problems)
    patch = reading.values
    for path in taken_back:
        _put(patch, path, None)
    return _below(patch, section)


def _put(tree: dict[str, Any], path: Sequence[str], value: object) -> None:
    for step in path[:-1]:
        tree = tree.setdefault(step, {})
    tree[path[-1]] = value


def _below(tree: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    for step in path:
        tree = tree[step]
    return tree
