from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from policies.params import Params

P = TypeVar("P", bound=Params)


class PolicyError(Exception):
    """A policy that cannot be built. `place` is a path in its `PolicySpec`, such as ``("hold", "prefills")``."""

    def __init__(self, rule: str, place: tuple[str, ...], problem: str, fix: str) -> None:
        super().__init__(f"{_named(rule, place)}: {problem}; {fix}")
        self.rule = rule
        self.place = place
        self.problem = problem
        self.fix = fix


RULE = ("rule",)
"""The place of a mistake that is no parameter's."""


def _named(rule: str, place: tuple[str, ...]) -> str:
    if place == RULE:
        return f"policy {rule!r}"
    return f"policy {rule!r}, parameter {place[1]!r}" if place[0] == "params" else f"policy.{'.'.join(place)}"


def converted(rule: str, section: str, kind: type[P], given: Mapping[str, Any]) -> P:
    """Convert the parameters strictly, one at a time, so that an error names its parameter."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for parameter, value in given.items():
        if parameter not in fields:
            takes = f"write one of {', '.join(fields)}" if fields else "this policy takes no parameters"
            raise PolicyError(rule, (section, parameter), "no such parameter", takes)
        try:
            values[parameter] = msgspec.convert(value, fields[parameter].type)
        except msgspec.ValidationError as error:
            example = "".join(
                f", such as {value!r}" for value in _default(fields[parameter]).values() if value is not None
            )
            fix = f"write {_type_name(fields[parameter])}{example}"
            raise PolicyError(rule, (section, parameter), f"{value!r} will not do ({error})", fix) from None
    missing = [field.name for field in fields.values() if field.required and field.name not in values]
    if missing:
        raise PolicyError(rule, (section, missing[0]), "is required", f"write {_type_name(fields[missing[0]])}")
    return kind(**values)


def described(kind: type[Params]) -> dict[str, Any]:
    fields = msgspec.structs.fields(kind)
    return {field.name: {"type": _type_name(field), **_default(field), **_meaning(field)} for field in fields}


def _default(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    """Return ``{"default": value}``, empty for a required parameter."""
    if field.default_factory is not msgspec.NODEFAULT:
        return {"default": field.default_factory()}
    return {} if field.default is msgspec.NODEFAULT else {"default": field.default}


def _meaning(field: msgspec.structs.FieldInfo) -> dict[str, str]:
    """Return ``{"meaning": text}``, empty for a parameter without description."""
    shown = msgspec.inspect.type_info(field.type)
    schema = shown.extra_json_schema if isinstance(shown, msgspec.inspect.Metadata) else None
    return {"meaning": schema["description"]} if schema and "description" in schema else {}


_TYPE_WORDS = {
    "IntType": "a whole number",
    "FloatType": "a number",
    "StrType": "a string",
    "BoolType": "true or false",
    "ListType": "a list",
    "DictType": "a table",
}


def _type_name(field: msgspec.structs.FieldInfo) -> str:
    """Return a type for error messages, such as `a number at least 1`."""
    shown = msgspec.inspect.type_info(field.type)
    if isinstance(shown, msgspec.inspect.Metadata):
        shown = shown.type
    if isinstance(shown, msgspec.inspect.UnionType):  # a type or None
        shown = next(one for one in shown.types if not isinstance(one, msgspec.inspect.NoneType))
    if isinstance(shown, msgspec.inspect.LiteralType):
        return " or ".join(repr(value) for value in shown.values)
    text = _TYPE_WORDS.get(type(shown).__name__, str(field.type))
    for bound, words in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")):
        value = getattr(shown, bound, None)
        if value is not None:
            text += f" {words} {value:g}"
    return text
