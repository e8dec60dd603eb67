"""The comparison as printed tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from loadtest.fidelity.comparison import Comparison, Quantile
from loadtest.fidelity.judgement import Judgement


def print_cached(console: Console, comparisons: Sequence[Comparison]) -> None:
    """Print cached tokens, and the causes of differences."""
    table = _table("cached tokens", ("scenario", "requests", "vLLM", "model", "error", "requests that differ"))
    for one in comparisons:
        cached = one.cached
        sums = (f"{cached.requests}", f"{cached.served:,}", f"{cached.modelled:,}", f"{cached.error:+.2%}")
        table.add_row(title(one), *sums, _causes(one))
    console.print(table)


def print_pressure(console: Console, comparisons: Sequence[Comparison]) -> None:
    """Print further counts of both schedulers."""
    table = _table("scheduling", ("scenario", "preemptions: vLLM", "model", "blocks evicted: vLLM", "model"))
    for one in comparisons:
        counts = (one.preemptions[1], one.preemptions[0], one.evictions[1], one.evictions[0])
        table.add_row(title(one), *(f"{count:,}" for count in counts))
    console.print(table)


def print_times(console: Console, comparisons: Sequence[Comparison]) -> None:
    """Print TTFT and TPOT quantiles in modelled milliseconds, with and without the front end's time."""
    headings = ("scenario", "ms", "vLLM, client's view", "less front end", "model", "error")
    table = _table("time to first token, and per output token", headings)
    for one in comparisons:
        for row, raw in zip(one.times, one.raw_times, strict=True):
            less = f"{row.reference_ms:,.1f}" if row.measure == "TTFT" else ""
            name = title(one) if row is one.times[0] else ""
            table.add_row(name, _quantile(row), f"{raw.reference_ms:,.1f}", less, *_modelled(row))
    console.print(table)


def print_judgements(console: Console, judgements: Sequence[Judgement]) -> None:
    """Print the recorded runs next to their replays."""
    headings = ("recorded run", "ms", "recorded", "model", "error", "mean error of a request")
    table = _table("recorded on a real GPU, replayed; requests that no fit has read", headings)
    for one in judgements:
        errors = {"TTFT": one.ttft_error, "TPOT": one.tpot_error}
        for row in one.times:
            name = title(one) if row is one.times[0] else ""
            mean = f"{errors.pop(row.measure):.1%}" if row.measure in errors else ""
            table.add_row(name, _quantile(row), f"{row.reference_ms:,.1f}", *_modelled(row), mean)
    console.print(table)


def print_costs(console: Console, judgements: Sequence[Judgement]) -> None:
    """Print the constants that were used, as a profile writes them."""
    for one in judgements:
        prefill, decode = one.profile.prefill, one.profile.decode
        console.print(
            f"{title(one)}: "
            f"prefill a_ms = {prefill.a_ms:.2f} b_us = {prefill.b_us:.2f} d_ns = {prefill.d_ns:.4f}; "
            f"decode a_ms = {decode.a_ms:.2f} b_ms = {decode.b_ms:.4f} k_ns = {decode.k_ns:.2f}",
            highlight=False,
            soft_wrap=True,
        )


def title(one: Comparison | Judgement) -> str:
    """Return the scenario or recording, and vLLM's scheduling mode."""
    name = one.scenario if isinstance(one, Comparison) else one.name
    return f"{name}, {'async' if one.async_scheduling else 'sync'}"


def write_json(path: Path, comparisons: Sequence[Comparison], judgements: Sequence[Judgement]) -> None:
    """Write all printed figures and each differing request."""
    plain: dict[str, list[dict[str, Any]]] = {
        "served": [{**asdict(one), "failures": one.failures} for one in comparisons],
        "recorded": [{**asdict(one), "failures": one.failures} for one in judgements],
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(plain), indent=2))


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", overflow="fold")
    return table


def _quantile(row: Quantile) -> str:
    return f"{row.measure} p{row.share * 100:.0f}"


def _modelled(row: Quantile) -> tuple[str, str]:
    return f"{row.modelled_ms:,.1f}", f"{row.error:+.1%}"


def _causes(one: Comparison) -> str:
    causes = one.cached.causes
    return "; ".join(f"{count} {cause.value}" for cause, count in sorted(causes.items())) or "none"
