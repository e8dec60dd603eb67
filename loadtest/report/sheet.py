"""Tables for the console and for pages in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table: its title, column heads and rows, and the notes under it."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def print_sheet(console: Console, sheet: Sheet) -> None:
    shown = Table(title=sheet.title, title_justify="left", caption=sheet.note, caption_justify="left")
    for place, head in enumerate(sheet.heads):
        shown.add_column(head, justify="right" if place else "left")
    for row in sheet.rows:
        shown.add_row(*row)
    console.print(shown)


def markdown(sheet: Sheet) -> str:
    """Return the sheet as a paragraph with its title and note, and a table."""
    note = f" ({sheet.note})" if sheet.note else ""
    return f"**{sheet.title[0].upper()}{sheet.title[1:]}**{note}\n\n{table(sheet.heads, sheet.rows)}"


def table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows))
