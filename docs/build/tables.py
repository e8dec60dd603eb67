"""Parts of the generated pages."""

from __future__ import annotations

from collections.abc import Iterable

MADE = "`python -m docs.build` generates this page; a test compares it with the code.\n"


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]
