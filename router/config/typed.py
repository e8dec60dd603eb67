"""Convert the tree of one source to the types of the settings, and note every mistake with its place."""

from __future__ import annotations

import re
from typing import Any

from msgspec import inspect as kinds

from router.config.model import SECRETS, STRUCK_OUT
from router.config.problems import Problem, closest
from router.config.schema import (
    bare,
    default_of,
    fields,
    mapping_of,
    optional,
    root,
    settings,
    shorthand,
    shown,
    wanted,
)
from router.config.tree import Located, Path, dotted, plain
from router.config.units import in_plain_numbers, unit_of


class TypedTree:
    """Values of one source as nested dicts and lists, their places, and the problems found."""

    def __init__(self, tree: Located) -> None:
        self.places: dict[Path, str] = {}
        self.problems: list[Problem] = []
        self.wrong: set[Path] = set()
        """Paths of which the value is not known."""
        self.values: dict[str, Any] = self._section(root(), tree, ())

    def _read(self, kind: kinds.Type, node: Located, path: Path) -> Any:
        self.places[path] = node.place
        inner = bare(kind)
        if isinstance(node.value, dict):
            inner = mapping_of(inner) or inner
        left_empty = isinstance(path[-1], str) and not isinstance(inner, _LEAVES)
        if node.value is None and (optional(kind) or left_empty):
            return None
        match inner:
            case kinds.StructType():
                return self._section(inner, node, path)
            case kinds.VarTupleType():
                return self._list(inner, node, path)
            case kinds.DictType():
                return self._mapping(inner, node, path)
            case _:
                return self._leaf(inner, node, path)

    def _section(self, kind: kinds.StructType, node: Located, path: Path) -> dict[str, Any]:
        known = fields(kind)
        node = _expand(kind, node)
        if not isinstance(node.value, dict):
            self._wrong(kind, node, path)
            return {}
        for key in node.value:
            if key not in known:
                self._unknown(key, node.value[key].place, tuple(known), path)
        for name in [field.name for field in kind.fields if field.required and field.name not in node.value]:
            self.wrong.add((*path, name))
            self._note(node, f"{dotted(path)} has no {name}", f"write {name}: {_EXAMPLES.get(name, '...')}")
        values = {
            key: self._read(known[key].type, item, (*path, key)) for key, item in node.value.items() if key in known
        }
        given = {key: value for key, value in values.items() if value is not None or optional(known[key].type)}
        return {**self._placeholders(kind, path), **given}

    def _placeholders(self, kind: kinds.StructType, path: Path) -> dict[str, Any]:
        """Return texts in place of required ones that are wrong, so that the rest of the section can be checked."""
        texts = [field.name for field in kind.fields if field.required and isinstance(bare(field.type), kinds.StrType)]
        return {name: _PLACEHOLDER for name in texts if (*path, name) in self.wrong}

    def _list(self, kind: kinds.VarTupleType, node: Located, path: Path) -> list[Any]:
        if not isinstance(node.value, list):
            self._wrong(kind, node, path)
            return []
        return [self._read(kind.item_type, item, (*path, index)) for index, item in enumerate(node.value)]

    def _mapping(self, kind: kinds.DictType, node: Located, path: Path) -> dict[str, Any]:
        if not isinstance(node.value, dict):
            self._wrong(kind, node, path)
            return {}
        values = {key: self._read(kind.value_type, item, (*path, key)) for key, item in node.value.items()}
        return {key: {} if value is None and _is_section(kind.value_type) else value for key, value in values.items()}

    def _leaf(self, kind: kinds.Type, node: Located, path: Path) -> Any:
        value = plain(node)
        if isinstance(kind, (*_NUMBERS, kinds.UnionType, kinds.AnyType)):
            value = in_plain_numbers(value, path)
        if isinstance(kind, kinds.AnyType):
            return value
        if isinstance(value, bool) and isinstance(kind, kinds.LiteralType):
            word = "on" if value else "off"  # YAML 1.1 reads these words as true and false
            value = word if word in kind.values else value
        if not _fits(kind, value):
            return self._wrong(kind, node, path)
        return float(value) if isinstance(kind, kinds.FloatType) else value

    def _wrong(self, kind: kinds.Type, node: Located, path: Path) -> None:
        self.wrong.add(path[:-1] if path[-1:] == ("rule",) else path)  # parameters are those of a rule
        default = default_of(path)
        example = f", such as {shown(default)}" if default not in (None, {}, []) and isinstance(kind, _NUMBERS) else ""
        unit = unit_of(path) if isinstance(kind, (*_NUMBERS, kinds.UnionType)) else None
        with_unit = f", or {unit.example}" if unit is not None else ""
        is_text = " (text)" if isinstance(node.value, str) and isinstance(kind, _NUMBERS) else ""
        value = STRUCK_OUT if not SECRETS.isdisjoint(path) else shown(plain(node))
        self._note(
            node, f"{dotted(path) or 'the file'} is {value}{is_text}", f"write {wanted(kind)}{example}{with_unit}"
        )

    def _unknown(self, key: str, place: str, known: tuple[str, ...], path: Path) -> None:
        elsewhere = [".".join(found) for found, _ in settings() if found[-1] == key]
        if meant := closest(key, known):
            fix = f"did you mean {dotted((*path, meant))}?"
        elif elsewhere:
            fix = f"did you mean {elsewhere[0]}?"
        else:
            fix = f"write one of {', '.join(known)}"
        self.problems.append(Problem(place, f"unknown setting {dotted((*path, key))}", fix))

    def _note(self, node: Located, problem: str, fix: str) -> None:
        self.problems.append(Problem(node.place, problem, fix))


_PLACEHOLDER = "a"
_NUMBERS = (kinds.IntType, kinds.FloatType)
_LEAVES = (*_NUMBERS, kinds.BoolType, kinds.StrType, kinds.LiteralType, kinds.UnionType)
_LARGEST = 1e300
"""Largest accepted number. Infinity, NaN (for which no comparison holds) and whole numbers that no float can hold fail
this bound.
"""
_EXAMPLES = {"url": "http://HOST:PORT", "path": "/v1/PATH", "endpoint": "tcp://HOST:5557"}


def _expand(kind: kinds.StructType, node: Located) -> Located:
    """Return the full form of a section that was written as the text of its one required key."""
    key = shorthand(kind)
    if key is None or not isinstance(node.value, str):
        return node
    return Located({key: node}, node.place)


def _is_section(kind: kinds.Type) -> bool:
    return isinstance(bare(kind), kinds.StructType)


def _fits(kind: kinds.Type, value: Any) -> bool:
    match kind:
        case kinds.BoolType():
            return isinstance(value, bool)
        case kinds.IntType():
            return type(value) is int and _within(kind, value)
        case kinds.FloatType():
            return type(value) in (int, float) and -_LARGEST < value < _LARGEST and _within(kind, value)
        case kinds.LiteralType():
            return value in kind.values
        case kinds.UnionType():
            return any(_fits(member, value) for member in kind.types)
        case kinds.DictType() | kinds.NoneType():
            return False
        case kinds.StrType(pattern=str(pattern)):
            return isinstance(value, str) and re.search(pattern, value) is not None
        case _:
            return isinstance(value, str)


def _within(kind: kinds.IntType | kinds.FloatType, value: float) -> bool:
    return (
        (kind.gt is None or value > kind.gt)
        and (kind.ge is None or value >= kind.ge)
        and (kind.le is None or value <= kind.le)
        and (kind.lt is None or value < kind.lt)
    )
