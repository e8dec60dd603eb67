"""The figures as one picture: a panel per figure, a bar per proxy, whiskers from the lowest to the highest round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.bench.measures.catalogue import BASELINE, FIGURES
from loadtest.bench.results import Results, Spread
from loadtest.report.chart import OTHERS, OURS, REPRODUCIBLE, WHISKER, style

COLUMNS = 2
WIDTH_IN, ROW_IN, PANEL_IN = 9.0, 0.2, 0.62
FAR = 4.0
"""A bar this many times as long as all shorter ones is cut, so that the shorter ones stay distinguishable."""


def draw(path: Path, results: Results) -> None:
    """Write `results` as SVG; equal results give equal files."""
    from matplotlib.figure import Figure

    figures = [name for name in FIGURES if results.samples.get(name)]
    rows = -(-len(figures) // COLUMNS)
    proxies = [row.name for row in results.rows if row.missing is None]
    height_in = rows * (len(proxies) * ROW_IN + PANEL_IN) + 0.5
    with style(font_size=8):
        picture = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        picture.suptitle(conditions(results), x=0.01, ha="left", fontsize=9)
        panels = picture.subplots(rows, COLUMNS, squeeze=False).flatten()
        for place, panel in enumerate(panels):
            if place < len(figures):
                _panel(panel, results, figures[place], proxies, named=place % COLUMNS == 0)
            else:
                panel.axis("off")
        picture.savefig(path, **REPRODUCIBLE)


def conditions(results: Results) -> str:
    machine = results.machine
    rounds = f"{results.rounds} rounds" if results.rounds > 1 else "one round"
    return f"{machine.cpu}, {machine.cores} cores shared with load generator and worker; {rounds}, {results.date}"


def _panel(panel: Any, results: Results, name: str, proxies: Sequence[str], named: bool) -> None:
    figure = FIGURES[name]
    panel.set_title(f"{figure.title}, {f'x {BASELINE}' if figure.relative else figure.unit}", loc="left", fontsize=8)
    found = [results.ratio(name, proxy) if figure.relative else results.absolute(name, proxy) for proxy in proxies]
    limit = _limit([spread.median for spread in found if spread is not None])
    for place, (proxy, spread) in enumerate(zip(proxies, found, strict=True)):
        _bar(panel, place, proxy, spread, limit)
    panel.set_xlim(0, limit * 1.25)
    panel.set_ylim(len(proxies) - 0.5, -0.5)
    panel.set_yticks(range(len(proxies)), proxies if named else [""] * len(proxies))
    panel.tick_params(axis="y", length=0)
    panel.xaxis.set_visible(False)
    panel.spines["bottom"].set_visible(False)


def _bar(panel: Any, place: int, proxy: str, spread: Spread | None, limit: float) -> None:
    if spread is None:
        panel.text(0, place, " not measured", va="center", color=WHISKER, fontsize=7)
        return
    cut = spread.median > limit
    end = min(max(spread.median, 0.0), limit)
    panel.barh(place, end, height=0.7, color=OURS if proxy.startswith("warmroute") else OTHERS)
    if not cut:
        low, high = max(spread.low, 0.0), min(spread.high, limit * 1.1)
        panel.plot([low, high], [place, place], color=WHISKER, linewidth=1, solid_capstyle="butt")
        end = max(end, high)
    panel.text(end + limit * 0.015, place, f"{'… ' if cut else ''}{_short(spread.median)}", va="center", fontsize=7)


def _limit(medians: Sequence[float]) -> float:
    """Return the length of the longest bar that is drawn in full; at most half of the bars are cut."""
    longest = sorted(medians, reverse=True)
    for place in range(len(longest) // 2):
        if longest[place] <= FAR * longest[place + 1]:
            return longest[place] or 1.0
    return max(longest[len(longest) // 2 :], default=0.0) or 1.0


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
