"""Generators by name, with their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
        raise WorkloadError(f"generator {name}: {error}") from None


def _given(name: str, shape: type[Shape], text: str) -> dict[str, str]:
    params: dict[str, str] = {}
    for pair in filter(str.strip, text.split(",")):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals:
            raise WorkloadError(f"generator {name}: {pair!r} is not key=value")
        if key not in shape.__struct_fields__:
            known = ", ".join(shape.__struct_fields__)
            raise WorkloadError(f"generator {name} has no parameter {key!r}; it has {known}")
        if key in params:
            raise WorkloadError(f"generator {name}: {key} is given twice")
        params[key] = value
    return params
