"""The demo's chart: mean TTFT, one bar per policy."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from loadtest.report.summary import Row

MISSING = "--plot needs matplotlib: pip install 'matplotlib>=3.9' (the `loadtest` extra of Warmroute includes it)"
_LABELS = {"round_robin": "round robin", "marginal_cost": "Warmroute"}
_STYLE: dict[Any, Any] = {
    "backend": "svg",
    "svg.fonttype": "none",  # text stays text, so that the file does not depend on the fonts of the drawing machine
    "svg.hashsalt": "warmroute",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
}
_WIDTH_IN, _BAR_IN, _TEXT_IN = 7.2, 0.42, 0.95


def available() -> bool:
    return find_spec("matplotlib") is not None


def draw(path: Path, rows: Sequence[Row], setting: str, command: str) -> None:
    """Write the chart as SVG; equal rows give an equal file.

    `setting` is the line under the title. `command`, which draws the chart again, stands under the bars.
    """
    import matplotlib  # imported here because it is slow to load and not in the base install
    from matplotlib.figure import Figure

    means_ms = [round(row.ttft_mean_ms) for row in rows]
    with matplotlib.rc_context(_STYLE):
        picture = Figure(figsize=(_WIDTH_IN, len(rows) * _BAR_IN + _TEXT_IN), layout="constrained", facecolor="white")
        picture.suptitle(f"Mean time to first token, ms (lower is better)\n{setting}", x=0.01, ha="left", fontsize=10)
        axes = picture.subplots()
        colours = ["#b8bec6" if row.policy == "round_robin" else "#2f6fb4" for row in rows]
        bars = axes.barh(range(len(rows)), means_ms, height=0.65, color=colours)
        axes.bar_label(bars, [_label(mean_ms, means_ms[0]) for mean_ms in means_ms], padding=4)
        axes.set_yticks(range(len(rows)), [_LABELS.get(row.policy, row.policy) for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, max(max(means_ms), 1) * 1.2)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        axes.invert_yaxis()
        picture.supxlabel(command, x=0.01, ha="left", fontsize=9, family="monospace")
        picture.savefig(path, format="svg", metadata={"Date": None})


def _label(mean_ms: int, baseline_ms: int) -> str:
    ratio = f" ({mean_ms / baseline_ms:.2f} x)" if baseline_ms and mean_ms != baseline_ms else ""
    return f"{mean_ms:,}{ratio}"
