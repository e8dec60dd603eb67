"""Generators by name, with their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from loadtest.workload.errors import WorkloadError
from loadtest.workload.generators.agents import Agents
from loadtest.workload.generators.documents_beside_chats import DocumentsBesideChats
from loadtest.workload.generators.hot_prompt import HotPrompt
from loadtest.workload.generators.multi_turn import MultiTurn
from loadtest.workload.generators.no_reuse import NoReuse
from loadtest.workload.generators.rag import Rag
from loadtest.workload.generators.shape import Shape
from loadtest.workload.generators.shared_prefixes import SharedPrefixes
from loadtest.workload.generators.sibling_bursts import SiblingBursts
from loadtest.workload.plan import Plan

SHAPES: Mapping[str, type[Shape]] = {
    "shared_prefixes": SharedPrefixes,
    "multi_turn": MultiTurn,
    "agents": Agents,
    "rag": Rag,
    "documents_beside_chats": DocumentsBesideChats,
    "hot_prompt": HotPrompt,
    "no_reuse": NoReuse,
    "sibling_bursts": SiblingBursts,
}


@dataclass(frozen=True, slots=True)
class Generator:
    """A source of plans of one shape. `name` is the shape's name with the given parameters."""

    name: str
    shape: Shape

    def draw(self, seed: int, length_s: float, faster: float = 1.0) -> Plan:
        """Draw `length_s` seconds of traffic at `faster` times its `rate_per_s`. The seed draws everything."""
        shape = msgspec.structs.replace(self.shape, rate_per_s=self.shape.rate_per_s * faster)
        inside = (session for session in shape.drawn(seed, length_s) if session.start_s < length_s)
        return Plan.of(self.name, inside, length_s)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a generator, for listings. `allowed` is its range, empty if every value is allowed."""

    name: str
    type: str
    default: float
    allowed: str
    about: str


def parse_generator(text: str) -> Generator:
    """Return the generator that ``NAME[:key=value,...]`` names.

    Raises:
        WorkloadError: there is no such generator or parameter, or a value is out of range; says which there are.
    """
    name, _, given = text.partition(":")
    shape = SHAPES.get(name)
    if shape is None:
        raise WorkloadError(f"there is no generator {name!r}; there are {', '.join(SHAPES)}")
    params = _given(name, shape, given)
    try:
        return Generator(text, msgspec.convert(params, shape, strict=False))
    except msgspec.ValidationError as error:
        raise WorkloadError(f"generator {name}: {_wrong(shape, params) or error}") from None


def _wrong(shape: type[Shape], params: dict[str, str]) -> str | None:
    """Describe the parameter that is wrong by itself, and its range; None if only the combination is wrong."""
    fields = {field.name: field for field in msgspec.structs.fields(shape)}
    for one in parameters(shape):
        try:
            msgspec.convert(params.get(one.name, one.default), fields[one.name].type, strict=False)
        except msgspec.ValidationError:
            kind = {"int": "a whole number", "float": "a number"}[one.type]
            return (
                f"{one.name}={params[one.name]} will not do; it takes {kind} {one.allowed}, such as {one.default:.10g}"
            )
    return None


def _given(name: str, shape: type[Shape], text: str) -> dict[str, str]:
    params: dict[str, str] = {}
    for pair in filter(str.strip, text.split(",")):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals:
            raise WorkloadError(f"generator {name}: {pair!r} is not key=value")
        if key not in shape.__struct_fields__:
            known = ", ".join(parameter.name for parameter in parameters(shape))
            raise WorkloadError(f"generator {name} has no parameter {key!r}; it has {known}")
        if key in params:
            raise WorkloadError(f"generator {name}: {key} is given twice")
        params[key] = value
    return params


def parameters(shape: type[Shape]) -> list[Parameter]:
    """Return a shape's parameters, its own first, the common ones last."""
    _, components = msgspec.json.schema_components([shape])
    properties: dict[str, dict[str, Any]] = components[shape.__name__]["properties"]
    common = list(Shape.__struct_fields__)
    names = sorted(properties, key=lambda name: common.index(name) if name in common else -1)
    return [_listed(name, properties[name]) for name in names]


def common_parameters() -> list[Parameter]:
    """Return the parameters of every generator, with the most common defaults."""
    return parameters(Shape)


def own_parameters(shape: type[Shape]) -> list[Parameter]:
    """Return the parameters that only this shape has, or for which it has another default."""
    common = common_parameters()
    return [parameter for parameter in parameters(shape) if parameter not in common]


def _listed(name: str, schema: dict[str, Any]) -> Parameter:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    allowed = ", ".join(f"{sign} {schema[key]:,.10g}" for key, sign in signs.items() if key in schema)
    kind = {"integer": "int", "number": "float"}[schema["type"]]
    return Parameter(name, kind, schema["default"], allowed, schema["description"])
