"""Colours and settings that the SVG charts share. With these settings, equal numbers give an equal file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

OURS, OTHERS, WHISKER = "#2f6fb4", "#b8bec6", "#4a4f57"
REPRODUCIBLE: dict[str, Any] = {"format": "svg", "metadata": {"Date": None}}
"""Arguments of `savefig` that leave out the date."""
_STYLE: dict[Any, Any] = {
    "backend": "svg",
    "svg.fonttype": "none",  # text stays text, so that the file does not depend on the fonts of the drawing machine
    "svg.hashsalt": "warmroute",
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
}


@contextmanager
def style(font_size: float) -> Iterator[None]:
    import matplotlib  # imported here because it is slow to load and not in the base install

    with matplotlib.rc_context({**_STYLE, "font.size": font_size}):
        yield
