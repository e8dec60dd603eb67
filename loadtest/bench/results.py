"""The figures of every round, and the machine that gave them."""

from __future__ import annotations

import os
import platform
import statistics
from pathlib import Path

import msgspec
import psutil

from loadtest.bench.measures.sample import Sample


def this_machine() -> str:
    """Return processor, usable cores, memory and system."""
    memory_gib = psutil.virtual_memory().total / 2**30
    system = f"{platform.system()} {platform.release().partition('-')[0]}, Python {platform.python_version()}"
    return f"{_cpu()}, {len(os.sched_getaffinity(0))} cores, {memory_gib:.1f} GiB, {system}"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


class Row(msgspec.Struct):
    """One proxy. `missing` is the reason if it was not measured, `states` has its own report after each round."""

    name: str
    version: str = ""
    setup: str = ""
    missing: str | None = None
    states: list[str] = msgspec.field(default_factory=list)


class Results(msgspec.Struct):
    """Results of a whole run.

    `samples` has one entry per round, by figure and proxy. `failures` are those of whole proxies. `busy_share` is the
    CPU use of other programs before the run, 0 to 1.
    """

    command: str
    date: str
    machine: str
    rounds: int
    window_s: float
    connections: int
    memory_connections: int
    rows: list[Row]
    busy_share: float
    everything_on: bool = False
    failures: list[str] = msgspec.field(default_factory=list)
    samples: dict[str, dict[str, list[Sample]]] = msgspec.field(default_factory=dict)

    @property
    def measured(self) -> list[str]:
        """The names of the proxies that were measured."""
        return [row.name for row in self.rows if row.missing is None]

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
