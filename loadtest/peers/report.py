"""The tables of a comparison, on the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from loadtest.peers.figures import Figures, ratios, spread

MEASURES = (
    ("cached share", "cached_share", "{:.3f}"),
    ("TTFT mean, ms", "ttft_mean_ms", "{:,.0f}"),
    ("TTFT p50", "ttft_p50_ms", "{:,.0f}"),
    ("TTFT p90", "ttft_p90_ms", "{:,.0f}"),
    ("TTFT p99", "ttft_p99_ms", "{:,.0f}"),
    ("TPOT p50, ms", "tpot_p50_ms", "{:.1f}"),
    ("imbalance", "imbalance", "{:.2f}"),
    ("router CPU, ms/request", "router_cpu_ms", "{:.2f}"),
    ("workers' CPU, ms/request", "workers_cpu_ms", "{:,.0f}"),
    ("machine's CPU in use", "busy_share", "{:.2f}"),
    ("of it by this run", "own_share", "{:.2f}"),
)
RATIOS = (
    ("prompt tokens computed", "prefill_tokens"),
    ("TTFT mean", "ttft_mean_ms"),
    ("TTFT p50", "ttft_p50_ms"),
    ("TTFT p90", "ttft_p90_ms"),
    ("TTFT p99", "ttft_p99_ms"),
    ("TPOT p50", "tpot_p50_ms"),
)

ByContender = Mapping[str, Sequence[Figures]]


def by_contender(names: Sequence[str], runs: Sequence[Figures]) -> dict[str, list[Figures]]:
    """Return the runs without failed requests by contender, in the order of `names`."""
    grouped = {name: [run for run in runs if run.contender == name and not run.errors] for name in names}
    return {name: own for name, own in grouped.items() if own}


def print_tables(console: Console, grouped: ByContender, baseline: str) -> None:
    """Print medians with lowest and highest value, then ratios to `baseline` if it was measured in the same round."""
    rounds = max((len(runs) for runs in grouped.values()), default=0)
    over = "" if rounds < 2 else f", median and (least - most) of {rounds} rounds"
    table = _table(f"as the clients saw it{over}", grouped)
    for heading, key, form in MEASURES:
        table.add_row(heading, *(_cell(_values(runs, key), form) for runs in grouped.values()))
    console.print(table)
    if baseline not in grouped:
        console.print(f"no ratios: {baseline} did not take part, or not without failures", highlight=False)
        return
    table = _table(f"in units of {baseline} in the same round{over}", grouped)
    for heading, key in RATIOS:
        table.add_row(heading, *(_cell(ratios(runs, grouped[baseline], key), "{:.2f}") for runs in grouped.values()))
    console.print(table)


def _table(title: str, grouped: ByContender) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in grouped:
        table.add_column(name.replace(":", "\n", 1), justify="right")
    return table


def _values(runs: Sequence[Figures], key: str) -> list[float]:
    return [float(getattr(run, key)) for run in runs]


def _cell(values: Sequence[float], form: str) -> str:
    if not values:
        return "-"
    median, least, most = spread(values)
    if len(values) == 1:
        return form.format(median)
    return f"{form.format(median)} ({form.format(least)} - {form.format(most)})"


def write_json(path: Path, setting: Mapping[str, object], commands: Mapping[str, str], runs: Sequence[Figures]) -> None:
    """Write ``{"setting": ..., "commands": {contender: command line}, "runs": [every field of `Figures`]}``."""
    document = {"setting": setting, "commands": commands, "runs": [asdict(run) for run in runs]}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2))
