"""Read the text of a variable or a flag by the type of its setting."""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec import inspect as kinds

from router.config.schema import bare
from router.config.tree import Located, located

_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def from_text(kind: kinds.Type, text: str, place: str) -> Located:
    """Return `text` as `kind`. Text that does not fit stays text, so that the type check names it.

    Lists are comma-separated or JSON, mappings are JSON, untyped values are JSON if they parse as such.
    """
    match bare(kind):
        case kinds.BoolType():
            return Located(_TRUTH.get(text.strip().lower(), text), place)
        case kinds.UnionType(types=types) if any(isinstance(one, kinds.BoolType) for one in types):
            return located(_TRUTH.get(text.strip().lower(), _json(text, "{")), place)
        case kinds.IntType() | kinds.FloatType() | kinds.UnionType():
            return Located(_number(text), place)
        case kinds.VarTupleType(item_type=item):
            return _list(item, text, place)
        case kinds.DictType() | kinds.StructType():
            return located(_json(text, "{"), place)
        case kinds.AnyType():
            return located(_json(text, ""), place)
        case _:
            return Located(text, place)


def _list(item: kinds.Type, text: str, place: str) -> Located:
    if text.lstrip().startswith("["):
        return located(_json(text, "["), place)
    if text.lstrip().startswith("{"):
        return Located([from_text(item, text, place)], place)
    parts = [part.strip() for part in text.split(",")]
    return Located([from_text(item, part, place) for part in parts if part], place)


def _number(text: str) -> int | float | str:
    if re.fullmatch(r"\s*[+-]?[0-9]{1,300}\s*", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


def _json(text: str, opening: str) -> Any:
    if not text.lstrip().startswith(opening):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
