"""Differences between two desired states as rows of a table: setting, value now, value then."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

Row = tuple[str, str, str]
_ABSENT = object()


def rows(differences: Sequence[dict[str, Any]]) -> Iterator[Row]:
    """Yield the rows of the admin API's differences. A list of named items has a row for each field that differs."""
    for one in differences:
        yield from _rows(one["path"], one.get("before", _ABSENT), one.get("after", _ABSENT))


def _rows(path: str, before: Any, after: Any) -> Iterator[Row]:
    old, new = _by_name(before), _by_name(after)
    if old is None or new is None:
        yield path, _shown(before), _shown(after)
        return
    for name in [*old, *(name for name in new if name not in old)]:
        yield from _fields(f"{path}[{name}]", old.get(name, _ABSENT), new.get(name, _ABSENT))
    stayed = [name for name in old if name in new]
    if stayed != [name for name in new if name in old]:
        yield f"order of {path}", ", ".join(old), ", ".join(new)


def _fields(path: str, before: Any, after: Any) -> Iterator[Row]:
    if before == after:
        return
    if not isinstance(before, dict) or not isinstance(after, dict):
        yield path, _shown(before), _shown(after)
        return
    for key in [*before, *(key for key in after if key not in before)]:
        yield from _fields(f"{path}.{key}", before.get(key, _ABSENT), after.get(key, _ABSENT))


def _by_name(value: Any) -> dict[str, Any] | None:
    """Return the items of a list by their names; None if they have none, or share one."""
    if not isinstance(value, list) or not all(isinstance(item, dict) and "name" in item for item in value):
        return None
    named = {str(item["name"]): item for item in value}
    return named if len(named) == len(value) else None


def _shown(value: Any) -> str:
    return "-" if value is _ABSENT else json.dumps(_without_empty(value), ensure_ascii=False)


def _without_empty(value: Any) -> Any:
    """Leave out the fields of an object that are not set."""
    if not isinstance(value, dict):
        return [_without_empty(item) for item in value] if isinstance(value, list) else value
    fields = {key: _without_empty(item) for key, item in value.items()}
    return {key: item for key, item in fields.items() if item is not None and item != {} and item != []}
