"""The findings as tables, for the console and for the report's page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.console import Console
from rich.table import Table

from loadtest.lab.cell import Setting
from loadtest.lab.comparison import MARGIN, Standing
from loadtest.lab.findings import MEASURED, MEASURES, RANKED_BY, Findings, Measure, verdict
from loadtest.lab.measures import Figures

TIMES = [measure.name for measure in MEASURES].index("hit_share")
"""The number of measures that are times or follow from times; the others say how work was placed."""
WIDTH = 150


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table: its title, column heads and rows, and the notes under it."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def print_findings(console: Console, findings: Findings) -> None:
    console.print(summary(findings), highlight=False, markup=False)
    for sheet in sheets(findings):
        print_sheet(console, sheet)


def print_sheet(console: Console, sheet: Sheet) -> None:
    table = Table(title=sheet.title, title_justify="left", caption=sheet.note, caption_justify="left")
    for place, head in enumerate(sheet.heads):
        table.add_column(head, justify="right" if place else "left")
    for row in sheet.rows:
        table.add_row(*row)
    console.print(table)


def markdown(sheet: Sheet) -> str:
    """Return the sheet as a paragraph with its title and note, and a table."""
    note = f" ({sheet.note})" if sheet.note else ""
    rows = (sheet.heads, ["---"] * len(sheet.heads), *sheet.rows)
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"**{sheet.title[0].upper()}{sheet.title[1:]}**{note}\n\n{table}"


def summary(findings: Findings) -> str:
    """Return the setting and load 1.0."""
    fleet, slo = findings.setting.fleet, findings.setting.slo
    one, robin = findings.saturation, findings.round_robin
    theirs = "no rate holds it" if robin is None else f"{robin.arrivals_per_s:.2f} calls/s"
    beside = f"; round_robin's there: {theirs}" if findings.asked_round_robin else ""
    return (
        f"{findings.trace}: {fleet.workers} x {fleet.profile}{_roles(findings.setting)},"
        f" SLO TTFT {slo.ttft_ms:g} ms and TPOT {slo.tpot_ms:g} ms,"
        f" {findings.seeds} seed(s) of {findings.setting.window_s:g} s of the trace.\n"
        f"Load 1.0, where {one.policy}'s p90 TTFT crosses the SLO: {one.arrivals_per_s:.2f} calls/s,"
        f" {one.rate:.2f} x the trace's own rate{beside}."
    )


def _roles(setting: Setting) -> str:
    handover = setting.handover
    if handover is None:
        return ""
    counts = ", ".join(f"{count} {role}" for role, count in Counter(handover.roles).items())
    return f" ({counts}; KV handover: {handover.rule})"


def sheets(findings: Findings) -> Iterator[Sheet]:
    """Yield the tables: rules by measures for each load, rules by kinds of calls, and the sensitivity run."""
    for load in findings.loads:
        yield from _rules(findings, load)
    for load in findings.loads:
        if findings.kinds():
            yield _kinds(findings, load)
    if findings.doubts:
        yield from _doubts(findings)


NOTE = (
    "mean over seeds, plus or minus its 95 % interval; * best, = not inferior to it (within"
    f" {MARGIN:.0%}), - significantly worse (paired t, Holm-corrected for the rules compared)"
)


def _rules(findings: Findings, load: float) -> Iterator[Sheet]:
    measures = findings.measures()
    times, places = measures[:TIMES], measures[TIMES:]
    yield Sheet(f"load {load:g}: times", ("rule", *_titles(times)), tuple(_rows(findings, load, times)), NOTE)
    heads = ("rule", *_titles(places), MEASURED.title)
    rows = [
        (*row, format(findings.mean(MEASURED, row[0], load), MEASURED.form)) for row in _rows(findings, load, places)
    ]
    yield Sheet(f"load {load:g}: placement", heads, tuple(rows), NOTE)


def _titles(measures: Sequence[Measure]) -> list[str]:
    return [measure.title for measure in measures]


def _rows(findings: Findings, load: float, measures: Sequence[Measure]) -> Iterator[tuple[str, ...]]:
    columns = [findings.standings(measure, load) for measure in measures]
    for place, policy in enumerate(findings.policies):
        yield policy, *(_standing(column[place], measure) for column, measure in zip(columns, measures, strict=True))


def _standing(standing: Standing, measure: Measure) -> str:
    mark = {"best": " *", "not inferior": " =", "worse": " -"}.get(verdict(standing), "")
    half = "" if standing.half is None else f" ±{standing.half:{measure.form}}"
    return f"{standing.mean:{measure.form}}{half}{mark}"


def _kinds(findings: Findings, load: float) -> Sheet:
    rows = [
        (policy, kind, *_kind_figures(findings, policy, kind, load))
        for policy in findings.policies
        for kind in findings.kinds()
    ]
    heads = ("rule", "calls", "TTFT mean, ms", "TTFT p99, ms", "gap p99, ms", "goodput", "hit / prompt", "timed out")
    return Sheet(f"load {load:g}, by kind of call", heads, tuple(rows), "means over the seeds in which there are such")


def _kind_figures(findings: Findings, policy: str, kind: str, load: float) -> Iterator[str]:
    found = [one.measures.kinds[kind] for one in findings.at(policy, load) if kind in one.measures.kinds]
    for name, form in _KIND_COLUMNS:
        yield format(fmean(_of(figures, name) for figures in found), form) if found else ""


_KIND_COLUMNS = (
    ("ttft_mean_ms", ",.0f"),
    ("ttft_p99_ms", ",.0f"),
    ("itl_p99_ms", ",.1f"),
    ("goodput_share", ".3f"),
    ("hit_share", ".3f"),
    ("timed_out", ",.1f"),
)


def _of(figures: Figures, name: str) -> float:
    value: float = getattr(figures, name)
    return value


def _doubts(findings: Findings) -> Iterator[Sheet]:
    for measure in RANKED_BY:
        for load in findings.loads:
            usual = findings.ranking(measure, load)
            rows = [("as set", " < ".join(usual), "")]
            for doubt in findings.doubts:
                order = findings.ranking(measure, load, doubt.results)
                swaps = swapped(usual, order)
                rows.append((doubt.variant, " < ".join(order), str(swaps) if swaps else ""))
            yield Sheet(
                f"sensitivity of {measure.title} at load {load:g}",
                ("changed", "rules, best first", "pairs swapped"),
                tuple(rows),
                "by means over seeds; a swap of rules that do not differ significantly says nothing",
            )


def swapped(usual: list[str], order: list[str]) -> int:
    """Count the pairs whose order differs (Kendall's distance)."""
    place = {policy: number for number, policy in enumerate(order)}
    return sum(place[first] > place[second] for number, first in enumerate(usual) for second in usual[number + 1 :])
