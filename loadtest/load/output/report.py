"""The tables of a run, and its files: JSON, CSV and the records."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from loadtest.load.records import MEASURES
from loadtest.load.results import Findings, Results
from loadtest.load.tally import Ordered, Sample
from loadtest.report.sheet import Sheet, print_sheet
from loadtest.report.verdict import Answer

MS = 1e3


def print_report(console: Console, found: Mapping[str, Any], results: Results, findings: Findings) -> None:
    """Print the table of measures with their definitions, and one line for everything that qualifies it."""
    shares = sorted(
        {0.5, 0.9, *(float(key[1:-8]) / 100 for key in found if key.endswith("_ttft_ms") and key[0] == "p")}
    )
    print_sheet(console, measures(results, findings, shares))
    for line in summary(found, results, findings):
        console.print(line, highlight=False)


def measures(results: Results, findings: Findings, shares: Sequence[float]) -> Sheet:
    """Return the table of measures in ms; a percentile has its 95 % interval where there are enough values."""
    rows = []
    for name, sample in results.tally.samples.items():
        if sample.count:
            values = sample.ordered()
            cells = [_cell(values, share) for share in shares]
            rows.append((MEASURES[name].label, f"{sample.count:,}", f"{sample.mean * MS:,.1f}", *cells))
    title = "latency, ms" if findings.saturated is None else "latency of an overloaded endpoint, ms: not steady"
    used = [f"{MEASURES[name].label}: {MEASURES[name].definition}." for name in _filled(results.tally.samples)]
    note = "\n".join(used)
    heads = ("", "values", "mean", *(f"p{share * 100:g} (95 % interval)" for share in shares))
    return Sheet(title, heads, tuple(rows), note)


def _filled(samples: Mapping[str, Sample]) -> Iterator[str]:
    return (name for name, sample in samples.items() if sample.count)


def _cell(values: Ordered, share: float) -> str:
    between = values.interval(share)
    shown = f"{values.at(share) * MS:,.1f}"
    return f"{shown} ({between[0] * MS:,.1f}-{between[1] * MS:,.1f})" if between else f"{shown} (too few)"


def summary(found: Mapping[str, Any], results: Results, findings: Findings) -> Iterator[str]:
    tally = results.tally
    yield (
        f"{tally.completed:,} of {tally.total:,} requests complete in {results.duration_s:,.1f} s, drain included:"
        f" {found['request_throughput'] or 0:,.2f} requests/s, {found['output_throughput'] or 0:,.0f} output tokens/s;"
        f" at most {found['max_concurrent_requests']:,} at once"
    )
    if results.warm_up:
        yield f"{results.warm_up:,} requests of the warm-up are left out"
    if tally.cached_share is not None:
        yield f"cached share of prompt tokens, as the endpoint reports it: {tally.cached_share:.3f}"
    if tally.capped:
        yield f"{tally.capped:,} requests waited for --max-concurrency; their latency includes the wait"
    if tally.uncounted:
        yield f"{tally.uncounted:,} answers came without usage: their tokens are the events with text"
    for error, count in tally.errors.most_common(5):
        yield f"[red]{count:,} failed:[/red] {error}"
    if (saturated := findings.saturated) is not None:
        yield (
            f"[yellow]overloaded:[/yellow] {saturated.piled_share:.0%} of the arrivals pile up, and TTFT grows by"
            f" {saturated.ttft.per_s * MS:,.0f} ms per second; percentiles depend on the length of the run"
        )
    if findings.void:
        yield f"[red]void:[/red] {findings.void}"
    if (goal := findings.goal) is not None:
        goals = " ".join(f"{name}:{limit_s * MS:g}" for name, limit_s in results.goals.items())
        more = f"; {goal.missing:,} further good requests would meet it" if findings.answer is Answer.UNDECIDED else ""
        yield (
            f"goal {goals} for {results.attainment:.1%} of the requests: {findings.answer.words},"
            f" {goal.late:,} of {goal.total:,} miss it, goodput {found['request_goodput'] or 0:,.2f} requests/s{more}"
        )


def write_json(path: Path, found: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2))


def write_csv(path: Path, found: Mapping[str, Any]) -> None:
    """Write one row per figure: its name and its value; nested figures have dotted names."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("figure", "value"))
        writer.writerows(_flat("", found))


def _flat(prefix: str, found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        elif isinstance(value, list | tuple):
            yield from ((f"{prefix}{name}.{place}", each) for place, each in enumerate(value))
        else:
            yield f"{prefix}{name}", value
