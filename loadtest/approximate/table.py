"""Print the measures, and write them as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from loadtest.approximate.contenders import Family
from loadtest.approximate.score import Score, Showing, errors
from loadtest.approximate.workloads import Workload
from loadtest.report.confidence import Interval, interval

WIDTH = 132
"""Width of the tables on any output."""

RIVALS = (Family.FIXED_TTL, Family.BLIND_LRU, Family.SIZED_LRU, Family.NONE)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ratio of our view to a rival in mean TTFT and in cached share, seed by seed."""

    workload: str
    ours: str
    rival: str
    ttft: Interval
    cached: Interval

    @property
    def verdict(self) -> str:
        """Result of the comparison by mean TTFT."""
        if self.ttft.high < 1.0:
            return "better"
        return "worse" if self.ttft.low > 1.0 else "no difference shown"


def print_workload(console: Console, workload: Workload, showings: Sequence[Showing]) -> None:
    """Print a table with one row per view."""
    calls = sum(score.calls for score in showings[0].scores)
    seeds = ", ".join(str(score.seed) for score in showings[0].scores)
    console.print(f"\n{workload.name}: {workload.about}", highlight=False)
    table = Table(title=f"{calls:,} answered calls, seeds {seeds}; errors in tokens", title_justify="left", box=SIMPLE)
    table.add_column("view", no_wrap=True)
    for heading in ("cached", "TTFT ms", "p90", "p99", "error", "p10", "p50", "p90", "p99", "equal", "±1 block"):
        table.add_column(heading, justify="right")
    for showing in showings:
        table.add_row(showing.contender.name, *_quality(showing.scores), *_error_cells(showing, workload.block_tokens))
    console.print(table)


def _quality(scores: Sequence[Score]) -> Iterable[str]:
    yield _plus_minus(interval([score.cached_share for score in scores]), 3)
    yield _plus_minus(interval([score.ttft_mean_ms for score in scores]), 1)
    yield f"{interval([score.ttft_p90_ms for score in scores]).mean:.0f}"
    yield f"{interval([score.ttft_p99_ms for score in scores]).mean:.0f}"


def _error_cells(showing: Showing, block_tokens: int) -> list[str]:
    found = errors(showing.scores, block_tokens)
    if found is None:
        return ["-"] * 7
    sizes = [f"{value:,.0f}" for value in (found.mean, found.p10, found.p50, found.p90, found.p99)]
    return [*sizes, f"{found.equal:.3f}", f"{found.within_a_block:.3f}"]


def _plus_minus(value: Interval, digits: int) -> str:
    return f"{value.mean:.{digits}f}" + ("" if value.half != value.half else f" ±{value.half:.{digits}f}")


def compare(workload: str, showings: Sequence[Showing]) -> list[Comparison]:
    """Compare each Warmroute view with the best of each rival family, chosen with hindsight by mean TTFT."""
    ours = [showing for showing in showings if showing.contender.family is Family.OURS]
    rivals = [
        min(members, key=lambda showing: showing.ttft_mean_ms)
        for family in RIVALS
        if (members := [showing for showing in showings if showing.contender.family is family])
    ]
    return [_compared(workload, own, rival) for own in ours for rival in rivals]


def _compared(workload: str, own: Showing, rival: Showing) -> Comparison:
    pairs = list(zip(own.scores, rival.scores, strict=True))
    return Comparison(
        workload,
        own.contender.name,
        rival.contender.name,
        interval([a.ttft_mean_ms / b.ttft_mean_ms for a, b in pairs]),
        interval([a.cached_share / b.cached_share for a, b in pairs if b.cached_share]),
    )


def print_comparisons(console: Console, comparisons: Sequence[Comparison]) -> None:
    """Print where our view beats the best of each family, and where not."""
    table = Table(
        title="ours over the best of each kind (ratio per seed, 95 % interval)", title_justify="left", box=SIMPLE
    )
    for heading in ("workload", "ours", "against"):
        table.add_column(heading)
    for heading in ("mean TTFT", "cached share"):
        table.add_column(heading, justify="right")
    table.add_column("by TTFT")
    for made in comparisons:
        ratios = (_plus_minus(made.ttft, 3), _plus_minus(made.cached, 3))
        table.add_row(made.workload, made.ours, made.rival, *ratios, made.verdict)
    console.print(table)


def write_json(path: Path, showings: dict[str, list[Showing]]) -> None:
    """Write workload -> view -> its scores, without the individual errors."""
    document = {
        workload: {showing.contender.name: [_plain(score) for score in showing.scores] for showing in listed}
        for workload, listed in showings.items()
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2))


def _plain(score: Score) -> dict[str, object]:
    plain = asdict(score)
    del plain["errors_tokens"]
    return {**plain, "cached_share": score.cached_share}
