"""What a request's Accept header allows (RFC 9110, section 12.5.1)."""

from __future__ import annotations

from collections.abc import Iterable

_EVERYTHING = "*/*"


def accepts(accept: str, media_type: str) -> bool:
    """Return whether `accept` allows `media_type`. A header without a media range that can be read allows all.

    The most specific range counts. Parameters other than the weight `q` are ignored.
    """
    weights: dict[str, float] = {}
    for element in accept.lower().split(","):
        media_range, *parameters = (part.strip() for part in element.split(";"))
        if "/" in media_range:
            weights[media_range] = max(_weight(parameters), weights.get(media_range, 0.0))
    ranges = (media_type, f"{media_type.partition('/')[0]}/*", _EVERYTHING)
    return next((weights[each] > 0 for each in ranges if each in weights), not weights)


def _weight(parameters: Iterable[str]) -> float:
    """Return `q`, 1 if it is missing or no number."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 1.0
    return 1.0
