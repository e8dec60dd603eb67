"""How the commands print tables, shares and times."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_NARROWEST = 160
"""Columns where output is not a terminal."""


def wide_console() -> Console:
    """Return the console of tables. Where output is not a terminal, no cell is cut."""
    # late: `warmroute --help` must not wait for the table printer
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=max(console.width, _NARROWEST))


def share(value: float | None) -> str:
    """Return a share from 0 to 1 in percent; None is empty."""
    return "" if value is None else f"{value:.1%}"


def seconds(value: float | None) -> str:
    """Return a time in seconds, or in milliseconds below one second; None is empty."""
    if value is None:
        return ""
    return f"{1e3 * value:.3g} ms" if abs(value) < 0.9995 else f"{value:,.2f} s"


def change_s(value: float) -> str:
    """Return a difference of two times, with its sign."""
    return f"+{seconds(value)}" if value > 0.0 else seconds(value)
