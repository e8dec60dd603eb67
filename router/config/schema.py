"""The types of the settings as a tree, and descriptions of the values that a type takes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, cast

import msgspec
from msgspec import inspect as kinds

from router.config.model import SECRETS, STRUCK_OUT, Config
from router.config.tree import Path


@cache
def root() -> kinds.StructType:
    return cast("kinds.StructType", kinds.type_info(Config))


def bare(kind: kinds.Type) -> kinds.Type:
    """Return `kind` without "or None" and metadata. The result is a union only if several other types remain."""
    if isinstance(kind, kinds.Metadata):
        return bare(kind.type)
    if isinstance(kind, kinds.UnionType):
        first, *more = [member for member in kind.types if not isinstance(member, kinds.NoneType)]
        return kind if more else bare(first)
    return kind


def mapping_of(kind: kinds.Type) -> kinds.DictType | None:
    """Return the mapping that `kind` allows beside other types; None if it allows none."""
    members = kind.types if isinstance(kind, kinds.UnionType) else ()
    return next((member for member in members if isinstance(member, kinds.DictType)), None)


def optional(kind: kinds.Type) -> bool:
    return isinstance(kind, kinds.UnionType) and kind.includes_none


def fields(kind: kinds.StructType) -> dict[str, kinds.Field]:
    return {field.name: field for field in kind.fields}


def shorthand(kind: kinds.StructType) -> str | None:
    """Return the one required key, if there is exactly one: a section may be written as that key's text alone."""
    required = [field.name for field in kind.fields if field.required]
    return required[0] if len(required) == 1 else None


def type_at(path: Sequence[str]) -> kinds.Type | None:
    """Return the type of the setting at `path`, or None if there is no such setting."""
    kind: kinds.Type = root()
    for step in path:
        kind = mapping_of(bare(kind)) or bare(kind)
        if isinstance(kind, kinds.StructType) and step in fields(kind):
            kind = fields(kind)[step].type
        elif isinstance(kind, kinds.DictType):
            kind = kind.value_type
        else:
            return None
    return kind


def settings(kind: kinds.StructType | None = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Return every setting that is not a section, with its field."""
    for field in (kind or root()).fields:
        inner = bare(field.type)
        if isinstance(inner, kinds.StructType) and not optional(field.type):
            yield from settings(inner, (*path, field.name))
        else:
            yield (*path, field.name), field


def default_of(path: Path) -> Any:
    """Return the default at a path of keys, or None."""
    value: Any = msgspec.to_builtins(Config())
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def shown(value: Any) -> str:
    """Return a value as a user would write it, without secrets; text that may be a secret is hidden as a whole."""
    return json.dumps(_without_secrets(value), default=str, ensure_ascii=False)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: STRUCK_OUT if key in SECRETS else _without_secrets(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    return STRUCK_OUT if isinstance(value, str) and any(name in value for name in SECRETS) else value


def wanted(kind: kinds.Type) -> str:
    """Return the allowed values of `kind`, as the object of "write ..."."""
    kind = bare(kind)
    match kind:
        case kinds.BoolType():
            return "true or false"
        case kinds.IntType():
            return f"a whole number{_bounds(kind)}"
        case kinds.FloatType():
            return f"a number{_bounds(kind)}"
        case kinds.LiteralType(values=(only,)):
            return str(only)
        case kinds.LiteralType():
            return "one of " + ", ".join(map(str, kind.values))
        case kinds.UnionType():
            return " or ".join(wanted(member) for member in kind.types if not isinstance(member, kinds.NoneType))
        case kinds.VarTupleType():
            return "a list"
        case kinds.DictType():
            return "a mapping"
        case kinds.StructType():
            return "a mapping with " + ", ".join(fields(kind))
        case kinds.StrType(pattern=str()):
            return "printable ASCII text without spaces"
        case _:
            return "text"


def _bounds(kind: kinds.IntType | kinds.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge} to {kind.le}"
    lowest = f"of at least {kind.ge}" if kind.ge is not None else f"above {kind.gt:g}" if kind.gt is not None else ""
    highest = f"up to {kind.le:g}" if kind.le is not None else ""
    return "".join(f" {part}" for part in (lowest, highest) if part)
