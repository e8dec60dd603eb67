"""Numbers with a unit, as people write them: ``30s``, ``250ms``, ``64MiB``. The name of a setting says which unit fits.

Only settings that take a number read them, and a plain number keeps its meaning: seconds, or bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from router.config.tree import Path

_WRITTEN = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([A-Za-z]+)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Unit:
    """What a setting measures: the names of its units with their sizes, and an example for error messages."""

    names: Mapping[str, Decimal]
    example: str

    def number(self, text: str) -> int | float | None:
        """Return `text` in seconds or bytes; None if it is not a number with one of the units."""
        found = _WRITTEN.fullmatch(text)
        size = self.names.get(found[2]) if found is not None else None
        if found is None or size is None:
            return None
        value = Decimal(found[1]) * size
        return int(value) if value == value.to_integral_value() else float(value)


DURATION: Final = Unit(
    {name: Decimal(size) for name, size in {"ms": "0.001", "s": "1", "m": "60", "min": "60", "h": "3600"}.items()},
    "a time such as 30s or 250ms",
)
SIZE: Final = Unit(
    {
        "B": Decimal(1),
        **{f"{letter}B": Decimal(1000**power) for power, letter in enumerate("kMG", 1)},
        **{f"{letter}iB": Decimal(1024**power) for power, letter in enumerate("KMG", 1)},
    },
    "a size such as 64MiB or 1GiB",
)
_TIMES: Final = frozenset({"ttft", "tpot"})


def unit_of(path: Path) -> Unit | None:
    """Return the unit of the setting at `path`, by its name; None if it has none. A rate (``_per_s``) has none."""
    name = str(path[-1]) if path else ""
    if name in _TIMES or (name.endswith("_s") and not name.endswith("_per_s")):
        return DURATION
    return SIZE if name.endswith("_bytes") else None


def in_plain_numbers(value: Any, path: Path) -> Any:
    """Return `value` with each duration and size in it as a number, by the names of the keys that hold them."""
    if isinstance(value, dict):
        return {key: in_plain_numbers(item, (*path, key)) for key, item in value.items()}
    unit = unit_of(path) if isinstance(value, str) else None
    number = unit.number(value) if unit is not None else None
    return value if number is None else number
