"""TTFT of a case on both sides, and the first rule's in units of each other rule's, paired by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isnan
from statistics import fmean

from loadtest.lab.measures import Figures
from loadtest.lab.tables import Sheet
from loadtest.live.findings import Findings, Seed
from loadtest.report.confidence import Interval, interval

_TTFTS: tuple[tuple[str, Callable[[Figures], float]], ...] = (
    ("mean", lambda one: one.ttft_mean_ms),
    ("p50", lambda one: one.ttft_p50_ms),
    ("p90", lambda one: one.ttft_p90_ms),
    ("p99", lambda one: one.ttft_p99_ms),
)
_SIDES: tuple[tuple[str, Callable[[Seed, str], Figures]], ...] = (
    ("live", lambda one, rule: one.live[rule].measures.all),
    ("model", lambda one, rule: one.modelled[rule].all),
)
_Rows = Iterator[tuple[str, ...]]


def ratio(findings: Findings, side: int, of: Callable[[Figures], float], first: str, other: str) -> Interval:
    """Return the first rule's value over the other's: the mean over seeds, and its 95 % interval."""
    figures = _SIDES[side][1]
    return interval([of(figures(one, first)) / of(figures(one, other)) for one in findings.seeds])


def ttft_sheet(findings: Findings) -> Sheet:
    """Return the table of a case: milliseconds of every rule, then the ratios."""
    note = f"mean over {len(findings.seeds)} seed(s); ratios are paired by seed, with their 95 % interval"
    heads = ("TTFT, ms", *(name for name, _ in _TTFTS))
    return Sheet(f"case {findings.case}", heads, (*_times(findings), *_ratios(findings)), note)


def _times(findings: Findings) -> _Rows:
    for said, figures in _SIDES:
        for rule in findings.policies:
            seen = [figures(one, rule) for one in findings.seeds]
            yield f"{rule}, {said}", *(f"{fmean(map(of, seen)):,.1f}" for _, of in _TTFTS)


def _ratios(findings: Findings) -> _Rows:
    first, *others = findings.policies
    for side, (said, _) in enumerate(_SIDES):
        for other in others:
            cells = (_said(ratio(findings, side, of, first, other)) for _, of in _TTFTS)
            yield f"{first} / {other}, {said}", *cells


def _said(found: Interval) -> str:
    return f"{found.mean:.3f}" + ("" if isnan(found.half) else f" ±{found.half:.3f}")
