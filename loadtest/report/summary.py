"""One row of numbers per policy, from the timings of its requests; rows side by side, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from rich.console import Console

from loadtest.load.seen import Seen
from loadtest.report.sheet import Sheet, print_sheet

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
"""Heading, field of `Row`, and format."""


@dataclass(frozen=True, slots=True)
class Row:
    """One policy's run. `cached_share` is cached over prompt tokens; `prefill_tokens` is what the workers computed."""

    policy: str
    requests: int
    errors: int
    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    tpot_p99_ms: float
    cached_share: float
    prefill_tokens: int


def percentile(values: Sequence[float], share: float) -> float:
    """Interpolate linearly between the two nearest ranks; 0 for no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarise(policy: str, timings: Iterable[Seen]) -> Row:
    """Return the row of one policy. Failed requests count as errors and nowhere else."""
    all_ = list(timings)
    good = [timing for timing in all_ if timing.error is None]
    ttft = [timing.ttft_s * 1e3 for timing in good if timing.ttft_s is not None]
    tpot = [timing.tpot_s * 1e3 for timing in good if timing.tpot_s is not None]
    prompt = sum(timing.prompt_tokens for timing in good)
    cached = sum(timing.cached_tokens for timing in good)
    return Row(
        policy=policy,
        requests=len(all_),
        errors=len(all_) - len(good),
        ttft_mean_ms=sum(ttft) / len(ttft) if ttft else 0.0,
        ttft_p50_ms=percentile(ttft, 0.5),
        ttft_p99_ms=percentile(ttft, 0.99),
        tpot_p50_ms=percentile(tpot, 0.5),
        tpot_p99_ms=percentile(tpot, 0.99),
        cached_share=cached / prompt if prompt else 0.0,
        prefill_tokens=prompt - cached,
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
