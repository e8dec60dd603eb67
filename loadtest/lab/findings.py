"""The findings of one command, and the measures by which rules are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtest.lab.comparison import MARGIN, Standing, standings
from loadtest.lab.saturation import Saturation
from loadtest.lab.store import Result
from loadtest.lab.study import Study


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a result, its format, and whether higher is better."""

    name: str
    title: str
    of: Callable[[Result], float]
    form: str
    higher_is_better: bool = False


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
)


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of every cell of a study, in the order of its cells."""

    study: Study
    saturation: Saturation
    results: Sequence[Result]

    @property
    def policies(self) -> Sequence[str]:
        return self.study.policies

    @property
    def loads(self) -> Sequence[float]:
        return self.study.loads

    def at(self, policy: str, load: float) -> list[Result]:
        """Return one rule's results at one load, by seed."""
        return [one for one in self.results if one.cell["policy"] == policy and one.cell["load"] == load]

    def standings(self, measure: Measure, load: float) -> list[Standing]:
        values = {policy: [measure.of(one) for one in self.at(policy, load)] for policy in self.policies}
        return standings(values, higher_is_better=measure.higher_is_better)

    def kinds(self) -> list[str]:
        """Return the kinds of calls; empty if there is only one."""
        found = sorted({kind for one in self.results for kind in one.measures.kinds})
        return found if len(found) > 1 else []


def verdict(standing: Standing) -> str:
    """Return the word for a rule's comparison with the best one; empty if the seeds do not decide."""
    if standing.best:
        return "best"
    if standing.not_inferior:
        return "not inferior"
    return "worse" if standing.worse else ""


MARKS = {"best": " *", "not inferior": " =", "worse": " -", "": ""}
READING = (
    "mean over seeds, plus or minus half the width of its 95 % interval (Student's t); * best, = not inferior to it: a"
    f" mean more than {MARGIN:.0%} worse is ruled out at 5 %, - worse at 5 % (both by paired t tests over the seeds,"
    " Holm-corrected for the rules compared), no mark: undecided"
)
"""What figures and marks mean, on every page."""


def figure(standing: Standing, form: str) -> str:
    """Format a mean with its interval and its mark."""
    half = "" if standing.half is None else f" ±{standing.half:{form}}"
    return f"{standing.mean:{form}}{half}{MARKS[verdict(standing)]}"
