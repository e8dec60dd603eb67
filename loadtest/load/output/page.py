"""One HTML page of a run, with plots as SVG. It opens offline: it loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from loadtest.load.records import MEASURES, Record
from loadtest.load.results import Results
from loadtest.load.steady import in_flight

WIDTH, HEIGHT, LEFT, BOTTOM = 720, 220, 60, 24
MOST_POINTS = 2_000
BINS = 120
Point = tuple[float, float]
_STYLE = (
    "body{font:14px sans-serif;max-width:760px;margin:2em auto}td,th{padding:2px 10px;text-align:right}"
    "td:first-child,th:first-child{text-align:left}svg text{font-size:11px}dt{font-weight:bold}"
)


def write_page(path: Path, found: Mapping[str, Any], results: Results) -> None:
    path.write_text(page(found, results), encoding="utf-8")


def page(found: Mapping[str, Any], results: Results) -> str:
    records = sorted(results.kept, key=lambda one: one.intended_s)
    good = [one for one in records if one.good]
    parts = [
        f"<h1>{escape(str(found['model_id']))}</h1>",
        f"<p>{escape(str(found['date']))}, {found['completed']:,} of {results.tally.total:,} requests complete</p>",
        *(f"<p><b>{name}:</b> {escape(str(found[key]))}</p>" for name, key in _NOTES if found.get(key)),
        _table(found),
        plot("TTFT by intended time, ms", _times(good), dots=True),
        plot("requests in flight", _flying(records)),
        *(
            plot(f"{MEASURES[name].label}, ms, and the share of values below", _below(results, name))
            for name in _CURVES
        ),
        "<h2>Definitions</h2><dl>",
        *(f"<dt>{measure.label}</dt><dd>{escape(measure.definition)}</dd>" for measure in MEASURES.values()),
        "</dl>",
    ]
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>load</title><style>{_STYLE}</style>"
    return f"{head}<body>{''.join(parts)}</body></html>\n"


_NOTES = (("void", "void_reason"), ("arrivals that pile up, as a share", "piled_share"), ("verdict", "verdict"))
_CURVES = ("ttft", "tpot", "itl")


def _table(found: Mapping[str, Any]) -> str:
    heads = ["mean", "median", *sorted({key.split("_")[0] for key in found if key.endswith("_ttft_ms")} - _MEANS)]
    rows = [
        (measure.label, *(_number(found.get(f"{head}_{name}_ms")) for head in heads))
        for name, measure in MEASURES.items()
    ]
    lines = [("ms", *heads), *rows]
    return f"<table>{''.join('<tr>' + ''.join(f'<td>{cell}</td>' for cell in line) for line in lines)}</table>"


_MEANS = {"mean", "median", "std"}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _times(records: Sequence[Record]) -> list[Point]:
    step = max(1, len(records) // MOST_POINTS)
    return [(one.intended_s, one.ttft_s * 1e3) for one in records[::step] if one.ttft_s is not None]


def _flying(records: Sequence[Record]) -> list[Point]:
    if not records:
        return []
    first_s, last_s = records[0].intended_s, max(one.ended_s for one in records)
    edges = [first_s + (last_s - first_s) * place / BINS for place in range(BINS + 1)]
    return list(zip(edges, in_flight(records, edges), strict=True))


def _below(results: Results, name: str) -> list[Point]:
    values = results.tally.samples[name].ordered()
    return [(values.at(place / BINS) * 1e3, place / BINS) for place in range(BINS + 1)] if values.values else []


def plot(title: str, points: Sequence[Point], dots: bool = False) -> str:
    """Return a plot with straight axes from 0, or "" for no points."""
    if not points:
        return ""
    most_x, most_y = (max(values) or 1.0 for values in zip(*points, strict=True))
    placed = [(LEFT + x / most_x * (WIDTH - LEFT), (HEIGHT - BOTTOM) * (1.0 - y / most_y)) for x, y in points]
    drawn = "".join(_dots(placed)) if dots else _line(placed)
    axis = f"<path d='M{LEFT} 0V{HEIGHT - BOTTOM}H{WIDTH}' fill=none stroke=#999 />"
    return (
        f"<h2>{escape(title)}</h2><svg viewBox='0 0 {WIDTH} {HEIGHT}' role=img>{axis}{drawn}"
        f"<text x={LEFT - 4} y=10 text-anchor=end>{most_y:,.4g}</text>"
        f"<text x={WIDTH} y={HEIGHT - 6} text-anchor=end>{most_x:,.4g}</text></svg>"
    )


def _dots(points: Sequence[Point]) -> Iterator[str]:
    return (f"<circle cx={x:.1f} cy={y:.1f} r=1.5 fill=#2f6fb4 />" for x, y in points)


def _line(points: Sequence[Point]) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f"<polyline points='{path}' fill=none stroke=#2f6fb4 stroke-width=1.5 />"
