"""Print rows as columns next to each other with their ratio, and write them as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec
from rich.console import Console

from loadtest.report.sheet import Sheet, print_sheet
from loadtest.report.summary import Row

MEASURES = (
    ("requests", "requests", "{:,.0f}"),
    ("errors", "errors", "{:,.0f}"),
    ("TTFT mean, ms", "ttft_mean_ms", "{:,.0f}"),
    ("TTFT p50, ms", "ttft_p50_ms", "{:,.0f}"),
    ("TTFT p99, ms", "ttft_p99_ms", "{:,.0f}"),
    ("TPOT p50, ms", "tpot_p50_ms", "{:,.1f}"),
    ("TPOT p99, ms", "tpot_p99_ms", "{:,.1f}"),
    ("cached share of prompt tokens", "cached_share", "{:.3f}"),
    ("prefill tokens executed", "prefill_tokens", "{:,.0f}"),
)


def print_rows(console: Console, title: str, rows: Sequence[Row]) -> None:
    """Print a column per row. With several rows, a further column shows the ratio of the last one to the first."""
    several = len(rows) > 1
    heads = ("", *(row.policy for row in rows), *(["ratio"] if several else []))
    cells = tuple(
        (heading, *(form.format(getattr(row, key)) for row in rows), *([_ratio(rows, key)] if several else []))
        for heading, key, form in MEASURES
    )
    print_sheet(console, Sheet(title, heads, cells))


def _ratio(rows: Sequence[Row], key: str) -> str:
    first, last = float(getattr(rows[0], key)), float(getattr(rows[-1], key))
    return f"{last / first:.2f} x" if first else "-"


def write_json(path: Path, rows: Sequence[Row]) -> None:
    """Write ``{"rows": [...]}`` with every field of `Row`."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode({"rows": [asdict(row) for row in rows]}), indent=2))
