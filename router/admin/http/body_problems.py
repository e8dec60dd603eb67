"""Say what a body of the API may hold where it does not fit: the values of a choice, or the fields of an object."""

from __future__ import annotations

import re
from typing import Any

from msgspec import inspect as kinds

from router.config.problems import closest
from router.config.schema import bare, fields, mapping_of, wanted

_PLACE = re.compile(r" - at `\$(.*)`$")
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_FIELD = re.compile(r"unknown field `([^`]*)`")


def fix_of(error: str, kind: Any) -> str:
    """Return the fix for msgspec's message about a body of type `kind`; empty if the message says enough."""
    found = _PLACE.search(error)
    there = _type_at(kinds.type_info(kind), found.group(1) if found is not None else "")
    if there is None:
        return ""
    if unknown := _FIELD.search(error):
        return _known(unknown.group(1), there)
    missing_type = error.startswith(("Invalid enum value", "Expected"))
    return f"; write {wanted(there)}" if missing_type and not isinstance(there, kinds.StructType) else ""


def _known(name: str, there: kinds.Type) -> str:
    if not isinstance(there, kinds.StructType):
        return ""
    known = list(fields(there))
    meant = closest(name, known)
    return f"; did you mean {meant}?" if meant else f"; write one of {', '.join(known)}"


def _type_at(kind: kinds.Type, path: str) -> kinds.Type | None:
    for name, _ in _STEP.findall(path):
        below = _below(kind, name)
        if below is None:
            return None
        kind = below
    return _chosen(kind)


def _chosen(kind: kinds.Type) -> kinds.Type:
    """Return the type without "or null" and metadata; of several types, the one that holds others."""
    inner = bare(kind)
    held = (kinds.StructType, kinds.VarTupleType, kinds.ListType)
    members = inner.types if isinstance(inner, kinds.UnionType) else ()
    return next((bare(one) for one in members if isinstance(bare(one), held)), inner)


def _below(kind: kinds.Type, name: str) -> kinds.Type | None:
    inner = _chosen(kind)
    if isinstance(inner, kinds.StructType) and name in fields(inner):
        return fields(inner)[name].type
    if isinstance(inner, (kinds.VarTupleType, kinds.ListType)) and not name:
        return inner.item_type
    mapping = inner if isinstance(inner, kinds.DictType) else mapping_of(inner)
    return None if mapping is None else mapping.value_type
