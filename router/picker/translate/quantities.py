"""Quantities of Kubernetes (``1Gi``, ``500M``, ``1k``) and durations of Go (``1m30s``, ``250ms``)."""

from __future__ import annotations

import re
from decimal import Decimal

_QUANTITY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?", re.ASCII)
_SIZES: dict[str, Decimal] = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{name: Decimal(1000**power) for power, name in enumerate("kMGTPE", 1)},
    **{f"{name}i": Decimal(1024**power) for power, name in enumerate("KMGTPE", 1)},
}
_LARGEST = 2**63 - 1
_PART = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ns|us|µs|ms|s|m|h)", re.ASCII)
_SECONDS = {
    name: Decimal(size)
    for name, size in {
        "ns": "1e-9",
        "us": "1e-6",
        "µs": "1e-6",
        "ms": "0.001",
        "s": "1",
        "m": "60",
        "h": "3600",
    }.items()
}


def whole(value: object) -> int | None:
    """Return a quantity, rounded up to a whole number as in Kubernetes; None if `value` is none, or beyond 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    found = _QUANTITY.fullmatch(str(value).strip())
    if found is None:
        return None
    number = Decimal(found[1]) * _SIZES[found[2] or ""]
    rounded = int(number.to_integral_value("ROUND_CEILING"))
    return rounded if rounded <= _LARGEST else None


def seconds(value: object) -> float | None:
    """Return a duration in seconds; None if `value` is none."""
    if value == "0":
        return 0.0
    if not isinstance(value, str) or not re.fullmatch(f"(?:{_PART.pattern})+", value, re.ASCII):
        return None
    return float(sum(Decimal(number) * _SECONDS[unit] for number, unit in _PART.findall(value)))
