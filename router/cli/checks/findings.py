"""Print the result of ``warmroute check``, as text or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from router.cli.checks.examine import Advice, WorkerReport
from router.cli.checks.examine_redis import RedisReport
from router.cli.formats import wide_console
from router.config.budgets import MemoryPlan


def document(
    reports: list[WorkerReport],
    places: list[str],
    plan: MemoryPlan,
    warnings: Sequence[str],
    redis: RedisReport | None,
) -> dict[str, Any]:
    """Return the document of ``--json``. `places` say where each worker is configured."""
    return {
        "problems": list(_problems(reports, places, redis)),
        "warnings": list(warnings),
        "memory": plan.to_builtins(),
        "redis": asdict(redis) if redis is not None else None,
        "workers": [asdict(report) for report in reports],
    }


def _problems(reports: list[WorkerReport], places: list[str], redis: RedisReport | None) -> Iterator[dict[str, str]]:
    if redis is not None and redis.problem and redis.fix:
        yield {"place": "redis.url", "problem": f"Redis at {redis.url}: {redis.problem}", "fix": redis.fix}
    for report, place in zip(reports, places, strict=True):
        if report.problem and report.fix:
            yield {"place": place, "problem": f"worker {report.id}: {report.problem}", "fix": report.fix}


def print_findings(
    reports: list[WorkerReport],
    places: list[str],
    plan: MemoryPlan,
    warnings: Sequence[str],
    redis: RedisReport | None,
) -> None:
    """Print memory budgets, a table, details and advice on stdout, warnings and problems on stderr."""
    console = wide_console()
    console.print("the settings are valid")
    for stated in plan.lines():
        console.print(stated, soft_wrap=True)
    for warning in warnings:
        print(f"warmroute: warning: {warning}", file=sys.stderr)
    if redis is not None:
        console.print(redis.line, soft_wrap=True)
    if reports:
        console.print(_table(reports))
    else:
        console.print("no workers are configured: write --worker URL to have them reached too")
    for line in [*_details(reports), *_advice(reports)]:
        console.print(line, soft_wrap=True)
    for problem in _problems(reports, places, redis):
        print(f"warmroute: {problem['place']}: {problem['problem']}; {problem['fix']}", file=sys.stderr)


def _table(reports: list[WorkerReport]) -> Table:
    table = Table()
    for heading in ("worker", "view of its cache", "vLLM", "block", "KV tokens", "KV events", "cached_tokens"):
        table.add_column(heading, no_wrap=True, justify="right" if heading in ("block", "KV tokens") else "left")
    table.add_column("models", overflow="fold")
    for report in reports:
        table.add_row(*(Text(cell) for cell in _row(report)))
    return table


def _row(report: WorkerReport) -> tuple[str, ...]:
    facts = report.facts
    if facts is None:
        return report.id, "unreachable", *[""] * 6
    reported = {True: "reported", False: "not reported", None: ""}[report.reports_cached_tokens]
    caches = list(facts.caches.values())
    return (
        report.id,
        report.problem or report.residency.value,
        facts.version or "?",
        " ".join(sorted({str(cache.block_size) for cache in caches})) or "?",
        _times(len(caches), sorted({f"{cache.capacity_tokens:,}" for cache in caches})) or "?",
        _times(len(facts.event_sources), ["published"] if facts.event_sources else []) or "none",
        reported,
        "\n".join(card.id for card in facts.models),
    )


def _times(ranks: int, values: list[str]) -> str:
    """Return the values of all data-parallel ranks, once if they are all the same."""
    return f"{ranks} x {values[0]}" if ranks > 1 and len(values) == 1 else " ".join(values)


def _details(reports: list[WorkerReport]) -> Iterator[Text]:
    """Return the lines that do not fit in the table."""
    for report in reports:
        facts = report.facts
        if facts is None or report.problem:
            continue
        yield Text.assemble((report.id, "bold"), f"  {report.residency.value}: {report.reason}")
        yield from (Text(f"  KV events at {source.endpoint}") for source in facts.event_sources)
        yield from (Text(f"  prompts of {model}: {described}") for model, described in report.prompts.items())
        for model, chats in report.chats.items():
            yield from (Text(f"  chat of {model}, {name}: {result}") for name, result in chats.items())
        yield from (Text(f"  {note}") for note in facts.notes)


def _advice(reports: list[WorkerReport]) -> Iterator[Text]:
    found: dict[Advice, list[str]] = {}
    for report in reports:
        for advice in report.advice:
            found.setdefault(advice, []).append(report.id)
    if found:
        yield Text("what would improve it", "bold")
    for advice, workers in found.items():
        yield Text(f"  {advice.flag}\n      {advice.why} ({', '.join(workers)})")
