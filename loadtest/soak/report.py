"""The result of a soak, printed and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console

from loadtest.load.seen import Kind
from loadtest.report.sheet import Sheet, print_sheet


@dataclass(slots=True)
class Verdict:
    """All measurements of a soak.

    `failures` make the exit code 1; `outcomes` counts requests by what the client saw. `descriptors` and `tasks` are
    those at rest, before and after.
    """

    seed: int
    duration_s: float
    requests_per_s: float = 0.0
    highest_requests_per_s: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: dict[str, int] = field(default_factory=dict)
    unexplained: list[str] = field(default_factory=list)
    first_byte_ms: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """From request to first byte of a complete answer: median, 99th percentile, maximum."""
    rss_mb: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """At the start, at half of the time, and at the end."""
    rss_growth_mb: float = 0.0
    rss_growth_bound_mb: float = 0.0
    peak_rss_mb: float = 0.0
    memory_limit_mb: float | None = None
    descriptors: tuple[int, int] = (0, 0)
    tasks: tuple[int, int] = (0, 0)
    attacks: dict[str, int] = field(default_factory=dict)
    attacker_requests: dict[str, int] = field(default_factory=dict)
    """By status, or by how they ended. A refused attack is no failure."""
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def requests(self) -> int:
        return self.outcomes.total()

    @property
    def failed_requests(self) -> int:
        """Requests that were neither answered completely nor left by their client."""
        return self.requests - self.outcomes[Kind.COMPLETE] - self.outcomes[Kind.LEFT]


def print_verdict(console: Console, verdict: Verdict) -> None:
    for title, counts in (
        ("what clients saw", verdict.outcomes),
        ("faults", verdict.faults),
        ("attacks", verdict.attacks),
        ("the attacker's requests", verdict.attacker_requests),
    ):
        if counts:
            rows = [(name, f"{count:,}") for name, count in sorted(counts.items(), key=lambda item: -item[1])]
            print_sheet(console, Sheet(title, ("", "count"), tuple(rows)))
    waits = "/".join(f"{ms:.0f}" for ms in verdict.first_byte_ms)
    lines = [
        f"{verdict.failed_requests} of {verdict.requests} requests failed; first byte p50/p99/max {waits} ms",
        *(_gauges(verdict) if verdict.rss_mb[-1] else ()),
        *(f"unexplained: {text}" for text in verdict.unexplained),
        *(f"FAILED: {text}" for text in verdict.failures),
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False)
    if verdict.passed:
        console.print("passed: every error explained, ledger empty, nothing left open")


def _gauges(verdict: Verdict) -> list[str]:
    limit = f" under a limit of {verdict.memory_limit_mb:.0f} MB" if verdict.memory_limit_mb is not None else ""
    return [
        f"RSS {' -> '.join(f'{mb:.0f}' for mb in verdict.rss_mb)} MB, {verdict.rss_growth_mb:+.1f} MB in its second "
        f"half (bound {verdict.rss_growth_bound_mb:g} MB); peak {verdict.peak_rss_mb:.0f} MB{limit}",
        f"open files at rest {verdict.descriptors[0]} -> {verdict.descriptors[1]}, "
        f"tasks {verdict.tasks[0]} -> {verdict.tasks[1]}",
    ]


def write_json(path: Path, verdict: Verdict) -> None:
    document = msgspec.to_builtins(verdict) | {
        name: getattr(verdict, name) for name in ("passed", "requests", "failed_requests")
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
