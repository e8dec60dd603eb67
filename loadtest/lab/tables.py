"""The findings as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from rich.console import Console

from loadtest.lab.findings import MEASURES, READING, Findings, Measure, figure
from loadtest.report.sheet import Sheet, print_sheet

TIMES = [measure.name for measure in MEASURES].index("hit_share")
"""The number of measures that are times or follow from times; the others say how work was placed."""
WIDTH = 150


def print_findings(console: Console, findings: Findings) -> None:
    console.print(summary(findings), highlight=False, markup=False)
    for sheet in sheets(findings):
        print_sheet(console, sheet)


def summary(findings: Findings) -> str:
    """Return the setting and load 1.0."""
    study, one = findings.study, findings.saturation
    fleet, slo = study.setting.fleet, study.setting.slo
    return (
        f"{study.trace}: {fleet.workers} x {fleet.profile},"
        f" SLO TTFT {slo.ttft_ms:g} ms and TPOT {slo.tpot_ms:g} ms,"
        f" {study.seeds} seed(s) of {study.setting.window_s:g} s of the trace.\n"
        f"Load 1.0, where {one.policy}'s p90 TTFT crosses the SLO: {one.arrivals_per_s:.2f} calls/s,"
        f" {one.rate:.2f} x the trace's own rate."
    )


def sheets(findings: Findings) -> Iterator[Sheet]:
    """Yield the tables: rules by measures for each load, and rules by kinds of calls."""
    measures = MEASURES
    for load in findings.loads:
        yield _rules(findings, load, "times", measures[:TIMES])
        yield _rules(findings, load, "placement", measures[TIMES:])
    if findings.kinds():
        yield from (_kinds(findings, load) for load in findings.loads)


def _rules(findings: Findings, load: float, what: str, measures: Sequence[Measure]) -> Sheet:
    columns = [[figure(one, measure.form) for one in findings.standings(measure, load)] for measure in measures]
    rows = tuple(zip(findings.policies, *columns, strict=True))
    return Sheet(f"load {load:g}: {what}", ("rule", *(measure.title for measure in measures)), rows, READING)


_KIND_COLUMNS = (
    ("TTFT mean, ms", "ttft_mean_ms", ",.0f"),
    ("TTFT p99, ms", "ttft_p99_ms", ",.0f"),
    ("gap p99, ms", "itl_p99_ms", ",.1f"),
    ("goodput", "goodput_share", ".3f"),
    ("hit / prompt", "hit_share", ".3f"),
    ("timed out", "timed_out", ",.1f"),
)


def _kinds(findings: Findings, load: float) -> Sheet:
    rows = tuple(
        (policy, kind, *_kind_figures(findings, policy, kind, load))
        for policy in findings.policies
        for kind in findings.kinds()
    )
    heads = ("rule", "calls", *(title for title, _, _ in _KIND_COLUMNS))
    return Sheet(f"load {load:g}, by kind of call", heads, rows, "means over the seeds in which there are such")


def _kind_figures(findings: Findings, policy: str, kind: str, load: float) -> Iterator[str]:
    found = [one.measures.kinds[kind] for one in findings.at(policy, load) if kind in one.measures.kinds]
    for _, name, form in _KIND_COLUMNS:
        yield format(fmean(getattr(figures, name) for figures in found), form) if found else ""
