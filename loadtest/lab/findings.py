"""The findings of one command, and the measures by which rules are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from loadtest.lab.cell import Setting
from loadtest.lab.comparison import Standing, standings
from loadtest.lab.saturation import Saturation
from loadtest.lab.store import Result


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a result, its format, and whether higher is better (None: neither)."""

    name: str
    title: str
    of: Callable[[Result], float]
    form: str
    higher_is_better: bool | None = False


MEASURES = (
    Measure("ttft_mean_ms", "TTFT mean, ms", lambda one: one.measures.all.ttft_mean_ms, ",.0f"),
    Measure("ttft_p99_ms", "TTFT p99, ms", lambda one: one.measures.all.ttft_p99_ms, ",.0f"),
    Measure("goodput_share", "goodput, share of calls", lambda one: one.measures.all.goodput_share, ".3f", True),
    Measure("goodput_per_s", "goodput, calls/s", lambda one: one.measures.all.goodput_per_s, ",.3f", True),
    Measure("tpot_mean_ms", "TPOT mean, ms", lambda one: one.measures.all.tpot_mean_ms, ",.1f"),
    Measure("itl_p99_ms", "inter-token gap p99, ms", lambda one: one.measures.all.itl_p99_ms, ",.1f"),
    Measure("e2e_mean_ms", "E2E mean, ms", lambda one: one.measures.all.e2e_mean_ms, ",.0f"),
    Measure("hit_share", "hit / prompt tokens", lambda one: one.measures.all.hit_share, ".3f", True),
    Measure("reuse_share", "hit / reusable tokens", lambda one: one.measures.all.reuse_share, ".3f", True),
    Measure("amplification", "prefill amplification", lambda one: one.measures.amplification, ".2f"),
    Measure("imbalance", "imbalance", lambda one: one.measures.imbalance, ".2f"),
    Measure("handed_over_share", "handed over, share", lambda one: one.measures.all.handed_over_share, ".3f", None),
)
MEASURED = Measure("decision_p50_us", "decision p50, CPU us", lambda one: one.measured.decision_p50_us, ",.0f", None)
RANKED_BY = tuple(one for one in MEASURES if one.name in ("ttft_mean_ms", "goodput_per_s"))
"""The measures of a sensitivity run. Goodput is taken per second, not as a share of calls. If clients wait for answers
before they ask again, a slow rule receives fewer calls, and may serve a larger share of them."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """The results of the same cells with one parameter of the models changed."""

    variant: str
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of every cell of one trace, ordered by seed, then load, then rule.

    `round_robin` is None if it holds the service level at no rate, or was not `asked_round_robin`.
    """

    trace: str
    setting: Setting
    policies: Sequence[str]
    loads: Sequence[float]
    saturation: Saturation
    round_robin: Saturation | None
    results: tuple[Result, ...]
    doubts: tuple[Doubt, ...] = ()
    asked_round_robin: bool = True

    @property
    def seeds(self) -> int:
        return len(self.results) // (len(self.policies) * len(self.loads))

    def measures(self) -> list[Measure]:
        return [one for one in MEASURES if one.name != "handed_over_share" or self.setting.handover is not None]

    def at(self, policy: str, load: float, results: Sequence[Result] | None = None) -> list[Result]:
        """Return one rule's results at one load, by seed."""
        among = self.results if results is None else results
        return [one for one in among if one.cell["policy"] == policy and one.cell["load"] == load]

    def standings(self, measure: Measure, load: float, results: Sequence[Result] | None = None) -> list[Standing]:
        values = {policy: [measure.of(one) for one in self.at(policy, load, results)] for policy in self.policies}
        return standings(values, higher_is_better=bool(measure.higher_is_better))

    def mean(self, measure: Measure, policy: str, load: float, results: Sequence[Result] | None = None) -> float:
        """Return a rule's mean over the seeds."""
        return fmean(measure.of(one) for one in self.at(policy, load, results))

    def ranking(self, measure: Measure, load: float, results: Sequence[Result] | None = None) -> list[str]:
        """Return the rules, best mean first."""
        sign = -1.0 if measure.higher_is_better else 1.0
        return sorted(self.policies, key=lambda policy: sign * self.mean(measure, policy, load, results))

    def kinds(self) -> list[str]:
        """Return the kinds of calls; empty if there is only one."""
        found = sorted({kind for one in self.results for kind in one.measures.kinds})
        return found if len(found) > 1 else []


def verdict(standing: Standing) -> str:
    """Return the table's word for a rule's comparison with the best one."""
    if standing.best:
        return "best"
    if standing.not_inferior:
        return "not inferior"
    return "worse" if standing.worse else ""
