"""The figures as tables on the terminal."""

from __future__ import annotations

from statistics import median

from rich.console import Console
from rich.table import Table

from loadtest.bench.measures.catalogue import BASELINE, FIGURES, Figure
from loadtest.bench.results import Results, Spread


def print_tables(console: Console, results: Results) -> None:
    """Print one table per figure, then proxies not measured, Warmroute's own report, and failures."""
    for name, figure in FIGURES.items():
        if name in results.samples:
            console.print(_table(results, name, figure))
    if results.direct_rates:
        console.out(
            f"the same clients without a proxy: {median(results.direct_rates):,.0f} requests/s", highlight=False
        )
    for row in results.rows:
        if row.missing is not None:
            console.out(f"{row.name}: not measured: {row.missing}", highlight=False)
        elif row.states:
            console.out(f"{row.name}: {row.states[-1]}", highlight=False)
    for complaint in results.complaints():
        console.out(complaint, style="red", highlight=False)


def _table(results: Results, name: str, figure: Figure) -> Table:
    table = Table(title=f"{figure.title}, {figure.unit}", title_justify="left")
    table.add_column("proxy")
    for heading in ("median (min - max)", f"x {BASELINE}", "per second"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in results.rows:
        if row.missing is None:
            table.add_row(row.name, *cells(results, name, row.name))
    return table


def cells(results: Results, figure: str, proxy: str) -> list[str]:
    """Return figure, ratio and load per second, or the reason why there are none."""
    shape = FIGURES[figure]
    if errors := results.errors(figure, proxy):
        return [f"{errors} failed: does not count", "", ""]
    if skipped := results.skipped(figure, proxy):
        return [skipped, "", ""]
    ratio = results.ratio(figure, proxy) if shape.relative else None
    rate = results.rate(figure, proxy)
    return [_said(results.absolute(figure, proxy), shape.digits), _said(ratio, 2), f"{rate:,.0f}" if rate else ""]


def _said(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return ""
    median, low, high = (f"{value:,.{digits}f}" for value in (spread.median, spread.low, spread.high))
    return f"{median} ({low} - {high})"
