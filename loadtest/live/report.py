"""The findings as a page of Markdown, on the console, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from rich.console import Console

from loadtest.lab.cell import as_json
from loadtest.lab.findings import Measure
from loadtest.lab.tables import Sheet, print_sheet
from loadtest.live.findings import COMPARED, Findings
from loadtest.live.ordering import Ordering
from loadtest.live.ratios import ttft_sheet
from loadtest.live.trial import Machine
from loadtest.report.confidence import interval

TIMES = 4
"""Number of compared measures that are times."""
PAGE = "live.md"
RESULTS = "results.json"


def sheets(findings: Findings) -> Iterator[Sheet]:
    """Yield the sheets: a case's TTFT, both sides' measures, the orders, and the machine."""
    if findings.case is not None:
        yield ttft_sheet(findings)
    note = f"mean over {len(findings.seeds)} seed(s), plus or minus its 95 % interval"
    for title, measures in (("times", COMPARED[:TIMES]), ("shares", COMPARED[TIMES:])):
        heads = ("rule", *(f"{one.title}: {side}" for one in measures for side in ("live", "model")))
        yield Sheet(title, heads, tuple(_row(findings, rule, measures) for rule in findings.policies), note)
    yield _orders(findings.orderings())
    yield _machine(findings)


def _row(findings: Findings, rule: str, measures: Sequence[Measure]) -> tuple[str, ...]:
    cells = [
        _mean(values[rule], one.form) for one in measures for values in (findings.live(one), findings.modelled(one))
    ]
    return rule, *cells


def _mean(values: Sequence[float], form: str) -> str:
    found = interval(values)
    return f"{found.mean:{form}}" + ("" if isnan(found.half) else f" ±{found.half:{form}}")


def _orders(found: Sequence[Ordering]) -> Sheet:
    rows = tuple(
        (one.measure, one.live, one.modelled, str(one.same), str(one.told_by_one), str(len(one.inverted)))
        for one in found
    )
    return Sheet(
        "orders, best first",
        ("measure", "live", "model", "pairs in the same order", "level on one side", "contradicted"),
        rows,
        "`>`: the 95 % interval of two neighbours' relative difference, paired by seed, leaves out 0; `~`: it does not",
    )


_MACHINE: tuple[tuple[str, Callable[[Machine], float], str], ...] = (
    ("machine's CPU in use", lambda one: one.busy_share, ".2f"),
    ("of it by this run", lambda one: one.own_share, ".2f"),
    ("gateway CPU, ms/call", lambda one: one.router_cpu_ms, ".1f"),
    ("workers' CPU, ms/call", lambda one: one.workers_cpu_ms, ".0f"),
    ("load generator CPU, ms/call", lambda one: one.client_cpu_ms, ".1f"),
    ("load generator late, p99 ms", lambda one: one.client_lag_p99_ms, ".1f"),
)


def _machine(findings: Findings) -> Sheet:
    rows = []
    for title, of, form in _MACHINE:
        cells = []
        for rule in findings.policies:
            values = [of(one.live[rule].machine) for one in findings.seeds]
            cells.append(f"{fmean(values):{form}} (up to {max(values):{form}})")
        rows.append((title, *cells))
    return Sheet("the machine meanwhile", ("", *findings.policies), tuple(rows), "mean over seeds")


def summary(findings: Findings) -> str:
    """Return a sentence or two on the workload and the fleet."""
    setting = findings.cell.setting
    measured = fmean(one.live[rule].measures.all.calls for one in findings.seeds for rule in findings.policies)
    rate = fmean(one.modelled[rule].arrivals_per_s for one in findings.seeds for rule in findings.policies)
    return (
        f"{findings.cell.trace}: {_fleet(findings)}, {_load(findings)}: {rate:.2f} calls/s, {measured:.0f} calls "
        f"measured per run, in {setting.window_s - setting.models.warm_up_s:g} of {setting.window_s:g} s. SLO: TTFT "
        f"{setting.slo.ttft_ms:g} ms, TPOT {setting.slo.tpot_ms:g} ms."
    )


def _fleet(findings: Findings) -> str:
    fleet, kv_tokens = findings.cell.setting.fleet, findings.cell.setting.models.kv_tokens
    kind = "vLLM servers without a GPU" if findings.backend == "vllm" else "embedded workers"
    stretched = f", step times stretched by {findings.time_scale:g}" if findings.time_scale != 1.0 else ""
    cache = f", {kv_tokens:,} tokens of KV cache each" if kv_tokens else ""
    return f"{fleet.workers} {kind} ({fleet.profile}{stretched}{cache})"


def _load(findings: Findings) -> str:
    cell, one = findings.cell, findings.saturation
    if one is None:
        return f"at {cell.rate:g} times the trace's own rate"
    return f"load {cell.load:g} of saturation ({one.arrivals_per_s:.2f} calls/s at 1.0)"


def verdict(findings: Findings) -> str:
    """Return the result of the comparison in one line."""
    found = findings.orderings()
    pairs = sum(len(one.pairs) for one in found)
    inverted = [f"{pair.first}/{pair.second} in {one.measure}" for one in found for pair in one.inverted]
    same, half = sum(one.same for one in found), sum(one.told_by_one for one in found)
    return (
        f"Of {pairs} pairs of rules, over all measures, {same} are in the same order on both sides, {half} are level on"
        f" one side only, {pairs - same - half - len(inverted)} on both, and {len(inverted)} are contradicted"
        + (f": {', '.join(inverted)}." if inverted else ".")
    )


def show(console: Console, findings: Findings) -> None:
    """Print every sheet on the console."""
    console.print(summary(findings), highlight=False, markup=False)
    for sheet in sheets(findings):
        print_sheet(console, sheet)
    console.print(verdict(findings), highlight=False, markup=False)


def page(findings: Findings) -> str:
    """Return every sheet as one page of Markdown."""
    parts = [summary(findings), verdict(findings)]
    for sheet in sheets(findings):
        lines = [_line(sheet.heads), _line(["---"] * len(sheet.heads)), *map(_line, sheet.rows)]
        parts += [f"**{sheet.title[0].upper()}{sheet.title[1:]}** ({sheet.note})", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write(folder: Path, findings: Findings) -> None:
    """Write the page, and every run's measures as JSON."""
    (folder / PAGE).write_text(page(findings), encoding="utf-8")
    (folder / RESULTS).write_bytes(msgspec.json.format(msgspec.json.encode(_document(findings)), indent=2))


def _document(findings: Findings) -> dict[str, Any]:
    return {
        "case": findings.case,
        "cell": as_json(findings.cell),
        "backend": findings.backend,
        "time_scale": findings.time_scale,
        "saturation": findings.saturation,
        "orderings": [asdict(one) for one in findings.orderings()],
        "seeds": [
            {
                "seed": one.seed,
                "live": {rule: _trial(trial.measures, trial.machine, trial.errors) for rule, trial in one.live.items()},
                "modelled": one.modelled,
            }
            for one in findings.seeds
        ],
    }


def _trial(measures: object, machine: Machine, errors: Sequence[str]) -> dict[str, Any]:
    return {"measures": measures, "machine": asdict(machine), "errors": errors}
