"""The findings as a page of Markdown, on the console, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from rich.console import Console

from loadtest.compare.findings import COMPARED, IMBALANCE, TTFTS, Findings
from loadtest.lab.measures import Measure
from loadtest.report.confidence import Interval, interval
from loadtest.report.sheet import Sheet, markdown, print_sheet

TIMES = 4
"""Number of compared measures that are times."""
PAGE = "compare.md"
RESULTS = "results.json"
_USAGE = (
    ("router CPU, ms/call", "router_cpu_ms", ".1f"),
    ("load generator late, p99 ms", "client_lag_p99_ms", ".1f"),
)


def sheets(findings: Findings) -> Iterator[Sheet]:
    """Yield the sheets: TTFT and its ratios, both sides' measures, and the machine."""
    note = f"mean over {len(findings.seeds)} seed(s), plus or minus its 95 % interval"
    heads = tuple(name.removeprefix("ttft_").removesuffix("_ms") for name in TTFTS)
    yield Sheet("TTFT, ms", ("", *heads), tuple(_ttfts(findings)), note)
    yield Sheet(f"TTFT in units of {findings.baseline}", ("", *heads), tuple(_ratios(findings)), f"{note}, by seed")
    for title, measures in (("times", COMPARED[:TIMES]), ("shares", (*COMPARED[TIMES:], IMBALANCE))):
        heads = ("", *(f"{one.title}: {side}" for one in measures for side in ("live", "model")))
        yield Sheet(title, heads, tuple(_row(findings, name, measures) for name in findings.names), note)
    yield _machine(findings)


def _sides(findings: Findings) -> Iterator[tuple[str, str, bool]]:
    yield from ((f"{name}, live", name, True) for name in findings.names)
    yield from ((f"{name}, model", name, False) for name in findings.policies)


def _ttfts(findings: Findings) -> Iterator[tuple[str, ...]]:
    for title, name, live in _sides(findings):
        yield title, *(_text(interval(findings.ttft_ms(name, one, live=live)), ",.0f") for one in TTFTS)


def _ratios(findings: Findings) -> Iterator[tuple[str, ...]]:
    for title, name, live in _sides(findings):
        if name != findings.baseline and (live or findings.baseline in findings.policies):
            yield title, *(_text(findings.ratio(name, one, live=live), ".3f") for one in TTFTS)


def _row(findings: Findings, name: str, measures: Sequence[Measure]) -> tuple[str, ...]:
    sides = [(one.form, values) for one in measures for values in (findings.live(one), findings.modelled(one))]
    return name, *(_mean(values, name, form) for form, values in sides)


def _mean(values: Mapping[str, Sequence[float]], name: str, form: str) -> str:
    return _text(interval(values[name]), form) if name in values else ""


def _text(found: Interval, form: str) -> str:
    return f"{found.mean:{form}}" + ("" if isnan(found.half) else f" ±{found.half:{form}}")


def _machine(findings: Findings) -> Sheet:
    rows = []
    for title, field, form in _USAGE:
        values = [findings.usage(name, field) for name in findings.names]
        rows.append((title, *(f"{fmean(own):{form}} (up to {max(own):{form}})" for own in values)))
    return Sheet("the machine meanwhile", ("", *findings.names), tuple(rows), "mean over seeds")


def summary(findings: Findings) -> str:
    setting = findings.cell.setting
    return (
        f"{findings.cell.trace}: {_fleet(findings)}, {_load(findings)}: {findings.calls():.0f} calls "
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


def show(console: Console, findings: Findings) -> None:
    console.print(summary(findings), highlight=False, markup=False)
    for sheet in sheets(findings):
        print_sheet(console, sheet)


def page(findings: Findings) -> str:
    return "\n\n".join([summary(findings), *map(markdown, sheets(findings))]) + "\n"


def write(folder: Path, findings: Findings, commands: Mapping[str, str]) -> None:
    """Write the page, and every run's measures and each router's command line as JSON."""
    (folder / PAGE).write_text(page(findings), encoding="utf-8")
    document: dict[str, Any] = {
        "case": findings.case,
        "cell": asdict(findings.cell),
        "backend": findings.backend,
        "time_scale": findings.time_scale,
        "commands": commands,
        "saturation": findings.saturation,
        "seeds": findings.seeds,
    }
    (folder / RESULTS).write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2))
