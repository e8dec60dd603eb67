"""The plots: a load curve per rule, the distribution of TTFT, and the cached share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from statistics import fmean
from typing import Any, Protocol

from loadtest.lab.comparison import Standing
from loadtest.lab.findings import MEASURES, Findings, Measure
from loadtest.lab.measures import QUANTILES

CURVES = ("ttft_mean_ms", "ttft_p99_ms", "goodput_share", "itl_p99_ms", "hit_share")
SIZE_IN = (7.5, 4.2)
DPI = 110
_LOG_FROM = 20.0
"""A vertical axis is logarithmic where its values differ by more than this factor."""
_LEGEND_WITHIN = 6
"""Number of rules. The legend of more rules would cover the lines, so it stands next to the plot."""


class Compared(Protocol):
    """What a load curve is drawn from: `standings` are in the order of `policies`."""

    @property
    def policies(self) -> Sequence[str]: ...

    @property
    def loads(self) -> Sequence[float]: ...

    def standings(self, measure: Measure, load: float) -> list[Standing]: ...


def draw(findings: Findings) -> dict[str, bytes]:
    """Draw all plots; return PNG images by name. The same findings give the same images."""
    distributions = {f"ttft_cdf_load_{load:g}": _picture(partial(_cdf, findings, load)) for load in findings.loads}
    return curves(findings) | distributions


def curves(findings: Compared, names: Sequence[str] = CURVES) -> dict[str, bytes]:
    """Draw the load curves of the named measures; return PNG images by name."""
    return {f"{one.name}_by_load": _picture(partial(_curve, findings, one)) for one in MEASURES if one.name in names}


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


def _curve(findings: Compared, measure: Measure, axes: Any) -> None:
    every: list[float] = []
    by_load = [findings.standings(measure, load) for load in findings.loads]
    for number, policy in enumerate(findings.policies):
        found = [standings[number] for standings in by_load]
        means = [one.mean for one in found]
        halves = [one.half or 0.0 for one in found]
        axes.errorbar(findings.loads, means, yerr=halves, marker="o", markersize=3, capsize=2, **_line(number, policy))
        every += means
    if min(every) > 0.0 and max(every) > _LOG_FROM * min(every):
        axes.set_yscale("log")
    _words(axes, "load (1.0: lpwl's p90 TTFT is the SLO)", measure.title)


def _cdf(findings: Findings, load: float, axes: Any) -> None:
    shares = [place / QUANTILES for place in range(QUANTILES + 1)]
    for number, policy in enumerate(findings.policies):
        by_seed = [one.measures.ttft_quantiles_ms for one in findings.at(policy, load)]
        axes.plot([fmean(values) for values in zip(*by_seed, strict=True)], shares, **_line(number, policy))
    axes.axvline(findings.study.setting.slo.ttft_ms, color="#888888", linestyle=":", linewidth=1)
    axes.set_xscale("log")
    _words(
        axes,
        f"TTFT, ms, at load {load:g} (dotted: the SLO); quantiles, mean over seeds",
        "share of calls not turned away",
    )


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
