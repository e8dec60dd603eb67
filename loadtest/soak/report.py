"""The result of a soak, printed and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

_MB = 1e6


@dataclass(slots=True)
class Verdict:
    """All measurements of a soak.

    `failures` make the exit code 1; `outcomes` counts requests by what the client saw.
    """

    seed: int
    duration_s: float
    requests_per_s: float
    highest_requests_per_s: float = 0.0
    requests: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    lost_batches: int = 0
    unexplained: list[str] = field(default_factory=list)
    rss_mb: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """At the start, at half of the time, and at the end."""
    allocated_blocks: tuple[int, int, int] = (0, 0, 0)
    """Memory blocks that Python used at about the same times."""
    rss_growth_mb: float = 0.0
    rss_growth_bound_mb: float = 0.0
    descriptors: tuple[int, int] = (0, 0)
    """At rest, before and after."""
    tasks: tuple[int, int] = (0, 0)
    failed_requests: int = 0
    """Requests that were neither answered completely nor left by their client."""
    first_byte_ms: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """From request to first byte of the answer: median, 99th percentile, maximum."""
    first_byte_attacked_ms: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """The same times while the attacker is active, which begins after a fifth of the time."""
    peak_rss_mb: float = 0.0
    memory_limit_mb: float | None = None
    attacks: dict[str, int] = field(default_factory=dict)
    attacker_requests: dict[str, int] = field(default_factory=dict)
    """By status, or by how they ended. A refused attack is no failure."""
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.failures


def print_verdict(console: Console, verdict: Verdict) -> None:
    console.print(_counts("what clients saw", verdict.outcomes, verdict.requests))
    console.print(_counts("faults", verdict.faults, None))
    if verdict.attacks:
        console.print(_counts("attacks", verdict.attacks, None))
        console.print(_counts("the attacker's requests", verdict.attacker_requests, None))
    lines = [f"{verdict.failed_requests} of {verdict.requests} requests failed; first byte {_waits(verdict)} ms"]
    if verdict.rss_mb[-1]:
        lines += _gauges(verdict)
    for line in lines:
        console.print(line, highlight=False)
    for text in verdict.unexplained:
        console.print(f"unexplained: {text}", highlight=False, markup=False)
    for text in verdict.failures:
        console.print(f"FAILED: {text}", highlight=False, markup=False)
    if verdict.passed:
        console.print("passed: every error explained, ledger empty, nothing left open")


def _waits(verdict: Verdict) -> str:
    quiet, attacked = (
        "p50/p99/max " + "/".join(f"{ms:.0f}" for ms in each)
        for each in (verdict.first_byte_ms, verdict.first_byte_attacked_ms)
    )
    return f"{quiet}, and beside the attacker {attacked}" if verdict.attacks else quiet


def _gauges(verdict: Verdict) -> list[str]:
    limit = f" under a limit of {verdict.memory_limit_mb:.0f} MB" if verdict.memory_limit_mb is not None else ""
    return [
        f"{verdict.lost_batches} batches of KV events lost",
        f"RSS {' -> '.join(f'{mb:.0f}' for mb in verdict.rss_mb)} MB, {verdict.rss_growth_mb:+.1f} MB in its second "
        f"half (bound {verdict.rss_growth_bound_mb:g} MB); peak {verdict.peak_rss_mb:.0f} MB{limit}",
        f"in use by Python {' -> '.join(f'{blocks:,}' for blocks in verdict.allocated_blocks)} blocks",
        f"open files at rest {verdict.descriptors[0]} -> {verdict.descriptors[1]}, "
        f"tasks {verdict.tasks[0]} -> {verdict.tasks[1]}",
    ]


def _counts(title: str, counts: dict[str, int], total: int | None) -> Table:
    table = Table(title=title if total is None else f"{title} ({total} requests)", title_justify="left")
    table.add_column("")
    table.add_column("count", justify="right")
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        table.add_row(name, f"{count:,}")
    return table


def write_json(path: Path, verdict: Verdict) -> None:
    document = asdict(verdict) | {"passed": verdict.passed}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
