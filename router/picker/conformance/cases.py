"""All cases."""

from __future__ import annotations

from collections.abc import Iterator

from router.picker.conformance.case import CaseGroup, ConformanceCase
from router.picker.conformance.groups import (
    availability,
    bodies,
    core,
    extensions,
    health,
    modes,
    responses,
    security,
    shedding,
    subset,
    transport,
)

GROUPS: tuple[CaseGroup, ...] = (
    *(core.GROUP, bodies.GROUP, modes.GROUP, subset.GROUP, availability.GROUP, shedding.GROUP),
    *(responses.GROUP, transport.GROUP, health.GROUP, security.GROUP, extensions.GROUP),
)


def cases() -> Iterator[tuple[str, ConformanceCase]]:
    """Yield each case with its id, as in ``B13``."""
    for group in GROUPS:
        for case in group.cases:
            yield f"{group.letter}{case.number}", case
