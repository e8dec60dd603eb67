"""The figures of every round, and their summary."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadtest.bench.machine import Machine
from loadtest.bench.measures.subject import Sample


class Row(msgspec.Struct):
    """Results of one proxy.

    `missing` is the reason if the proxy was not measured. `states` has its own report after each round.
    """

    name: str
    version: str = ""
    setup: str = ""
    missing: str | None = None
    states: list[str] = msgspec.field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, lowest and highest value over rounds."""

    median: float
    low: float
    high: float


class Results(msgspec.Struct):
    """Results of a whole run.

    `samples` has one entry per round, by figure and proxy. `failures` are those of whole proxies. `direct_rates` are
    the rates of the closed loop's clients without a proxy, per round. `busy_share` is the CPU use of other programs
    before the run, 0 to 1.
    """

    command: str
    date: str
    machine: Machine
    rounds: int
    window_s: float
    connections: int
    memory_connections: int
    rows: list[Row]
    busy_share: float
    everything_on: bool = False
    failures: list[str] = msgspec.field(default_factory=list)
    direct_rates: list[float] = msgspec.field(default_factory=list)
    samples: dict[str, dict[str, list[Sample]]] = msgspec.field(default_factory=dict)

    def add(self, figure: str, proxy: str, sample: Sample) -> None:
        self.samples.setdefault(figure, {}).setdefault(proxy, []).append(sample)

    def strike(self, proxy: str, reason: str) -> None:
        """Exclude the proxy from the results, because it could not be measured in every round."""
        self.row(proxy).missing = reason
        self.failures.append(f"{proxy}: {reason}")
        for proxies in self.samples.values():
            proxies.pop(proxy, None)

    def row(self, proxy: str) -> Row:
        return next(row for row in self.rows if row.name == proxy)

    def absolute(self, figure: str, proxy: str) -> Spread | None:
        """Return the figure in its own unit, over the rounds that count."""
        return _spread(self.values(figure, proxy))

    def values(self, figure: str, proxy: str) -> list[float]:
        """Return the figure in its own unit, for each round that counts."""
        return [sample.value for sample in self._of(figure, proxy) if sample.counts]

    def pairs(self, figure: str, proxy: str, other: str) -> list[tuple[float, float]]:
        rounds = zip(self._of(figure, proxy), self._of(figure, other), strict=False)
        return [(one.value, another.value) for one, another in rounds if one.counts and another.counts]

    def rate(self, figure: str, proxy: str) -> float | None:
        """Return the median load during the figure, per second."""
        rates = [sample.rate for sample in self._of(figure, proxy) if sample.counts]
        return statistics.median(rates) if rates else None

    def errors(self, figure: str, proxy: str) -> int:
        """Return the number of failed requests over all rounds."""
        return sum(sample.errors for sample in self._of(figure, proxy))

    def skipped(self, figure: str, proxy: str) -> str:
        """Return why the figure was skipped, if it was measured in no round."""
        samples = self._of(figure, proxy)
        return samples[-1].skipped if samples and all(sample.skipped for sample in samples) else ""

    def complaints(self) -> list[str]:
        """Return one line per failed proxy and figure; empty if the whole run counts."""
        lines = [*self.failures]
        for figure, proxies in self.samples.items():
            for proxy, samples in proxies.items():
                if errors := self.errors(figure, proxy):
                    reasons = sorted({reason for sample in samples for reason in sample.reasons})
                    lines.append(f"{proxy}, {figure}: {errors} failed ({'; '.join(reasons[:2])})")
        return lines

    def _of(self, figure: str, proxy: str) -> list[Sample]:
        return self.samples.get(figure, {}).get(proxy, [])


def _spread(values: Sequence[float]) -> Spread | None:
    return Spread(statistics.median(values), min(values), max(values)) if values else None


def write(path: Path, results: Results) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
