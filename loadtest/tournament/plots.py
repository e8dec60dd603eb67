"""The load curves of a workload: one line per rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from typing import Any

from loadtest.lab.measures import MEASURES, Measure
from loadtest.tournament.scores import Workload

SIZE_IN = (7.5, 4.2)
DPI = 110
_LOG_FROM = 20.0
"""A vertical axis is logarithmic where its values differ by more than this factor."""
_LEGEND_WITHIN = 6
"""Number of rules. The legend of more rules would cover the lines, so it stands next to the plot."""


def curves(workload: Workload, names: Sequence[str]) -> dict[str, bytes]:
    """Draw the load curves of the named measures; return PNG images by name."""
    return {f"{one.name}_by_load": _picture(partial(_curve, workload, one)) for one in MEASURES if one.name in names}


def _picture(paint: Callable[[Any], None]) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # imported here because it is slow to load
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_IN, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    paint(axes)
    file = BytesIO()
    figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
    return file.getvalue()


def _curve(workload: Workload, measure: Measure, axes: Any) -> None:
    every: list[float] = []
    by_load = [workload.standings(measure, load) for load in workload.loads]
    for number, policy in enumerate(workload.policies):
        found = [standings[number] for standings in by_load]
        means = [one.mean for one in found]
        halves = [one.half or 0.0 for one in found]
        axes.errorbar(workload.loads, means, yerr=halves, marker="o", markersize=3, capsize=2, **_line(number, policy))
        every += means
    if min(every) > 0.0 and max(every) > _LOG_FROM * min(every):
        axes.set_yscale("log")
    _words(axes, "load (1.0: lpwl's p90 TTFT is the SLO)", measure.title)


def _line(number: int, policy: str) -> dict[str, Any]:
    """Return a rule's line style: ten colours, then the same dashed, then dotted. The first rule's line stands out."""
    return {
        "label": policy,
        "color": f"C{number % 10}",
        "linestyle": ("-", "--", ":")[number // 10 % 3],
        "linewidth": 1.4 if number else 2.4,
        "zorder": 2 if number else 3,
    }


def _words(axes: Any, across: str, up: str) -> None:
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    beside = (
        {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
        if len(axes.get_legend_handles_labels()[1]) > _LEGEND_WITHIN
        else {}
    )
    axes.legend(fontsize=7, frameon=False, **beside)
