"""Results by seed, stored in results.json, from which the page is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadtest.lab.comparison import Standing, standings
from loadtest.lab.measures import MEASURES, Measure
from loadtest.lab.saturation import Saturation
from loadtest.lab.store import Result
from loadtest.tournament.study import Study
from loadtest.workload.source import GENERATOR

FILE = "results.json"
RANKED = tuple(one for one in MEASURES if one.name in ("ttft_mean_ms", "ttft_p99_ms", "goodput_per_s"))
"""The measures by which rules are ranked. Goodput is per second. Where clients wait for an answer before they ask
again, a slow rule receives fewer calls, and may serve a larger share of them."""
_ALSO = ("goodput_share", "tpot_mean_ms", "itl_p99_ms", "e2e_mean_ms", "hit_share", "amplification", "imbalance")
REPORTED = RANKED + tuple(one for one in MEASURES if one.name in _ALSO)


class Row(msgspec.Struct, frozen=True):
    """One rule at one load; each measure has a value per seed, and `calls` counts the measured ones of all seeds."""

    policy: str
    load: float
    calls: int
    values: dict[str, list[float]]


class Workload(msgspec.Struct, frozen=True):
    """One contest's results. `load_1_calls_per_s` is its load 1.0, `load_1_rate` the same as a factor on its own rate.

    `round_robin_calls_per_s` is the rate at which round robin saturates, None if it holds the service level at no
    rate. `block_tokens` is None for the trace's own.
    """

    name: str
    title: str
    trace: str
    workers: int
    profile: str
    ttft_ms: float
    tpot_ms: float
    block_tokens: int | None
    load_1_rate: float
    load_1_calls_per_s: float
    round_robin_calls_per_s: float | None
    rows: list[Row]

    @property
    def calls(self) -> int:
        return sum(row.calls for row in self.rows)

    @property
    def policies(self) -> list[str]:
        return list(dict.fromkeys(row.policy for row in self.rows))

    @property
    def loads(self) -> list[float]:
        return list(dict.fromkeys(row.load for row in self.rows))

    def values(self, measure: str, policy: str, load: float) -> list[float]:
        """Return a rule's values by seed."""
        return next(row.values[measure] for row in self.rows if (row.policy, row.load) == (policy, load))

    def standings(self, measure: Measure, load: float) -> list[Standing]:
        """Compare the rules at one load, in the order of `policies`."""
        values = {row.policy: row.values[measure.name] for row in self.rows if row.load == load}
        return standings(values, higher_is_better=measure.higher_is_better)


class Scores(msgspec.Struct, frozen=True):
    """A whole tournament. `asked` is its command; the first of `policies` is the judged one.

    `code` is the version that played it; by rule in files of earlier versions.
    """

    asked: str
    code: str | dict[str, str]
    quick: bool
    policies: list[str]
    loads: list[float]
    seeds: int
    window_s: float
    warm_up_s: float
    workloads: list[Workload]
    left_out: list[str] = []
    first_seed: int = 0

    @property
    def judged(self) -> str:
        """The rule whose losses are listed."""
        return self.policies[0]


def workload(study: Study, one: Saturation, robin: Saturation | None, results: Sequence[Result]) -> Workload:
    """Return a study's results. They keep a trace's file name, not its folder."""
    fleet, slo, models = study.setting.fleet, study.setting.slo, study.setting.models
    return Workload(
        study.name,
        study.title,
        study.source if study.source.startswith(GENERATOR) else Path(study.source).name,
        fleet.workers,
        fleet.profile,
        slo.ttft_ms,
        slo.tpot_ms,
        models.block_tokens,
        one.rate,
        one.arrivals_per_s,
        None if robin is None else robin.arrivals_per_s,
        [_row(policy, load, results) for load in study.extent.loads for policy in study.extent.policies],
    )


def _row(policy: str, load: float, results: Sequence[Result]) -> Row:
    found = [one.measures for one in results if (one.cell["policy"], one.cell["load"]) == (policy, load)]
    values = {measure.name: [_short(measure.of(one)) for one in found] for measure in REPORTED}
    return Row(policy, load, sum(one.all.calls for one in found), values)


def _short(value: float) -> float:
    """Round to six digits, because the docs keep tens of thousands of these numbers."""
    return float(f"{value:.6g}")


def write(path: Path, found: Scores) -> None:
    path.write_bytes(msgspec.json.encode(found) + b"\n")
