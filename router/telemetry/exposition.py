"""All metrics as values, for ``/metrics`` on the admin port."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector

from router.metrics.catalogue import CATALOGUE, PROCESS, Kind
from router.metrics.instruments import Distribution, Labels, Reading
from router.metrics.registry import Registry
from router.telemetry.snapshot import Snapshot, Tally

_DECLARED = {spec.name for spec in CATALOGUE if spec.kind is not Kind.HISTOGRAM}


class HasReadings(Protocol):
    """A part of the gateway whose metrics are read at scrape time."""

    def readings(self) -> Iterable[Reading]: ...


class Exposition:
    """The values of a `Registry`, the readings of `parts`, and the system's metrics of this process.

    Parts may name only gauges and counters of the catalogue. Others raise KeyError at a scrape.
    """

    def __init__(self, registry: Registry, parts: Iterable[HasReadings | None] = ()) -> None:
        self._instruments = registry
        self.parts = [part for part in parts if part is not None]
        self._process = OwnProcess()

    async def snapshot(self) -> Snapshot:
        """Return all current values. The event loop runs between the parts that they come from."""
        found = instruments_of(self._instruments)
        for part in self.parts:
            await asyncio.sleep(0)
            for name, labels, value in part.readings():
                if name not in _DECLARED:
                    raise KeyError(f"{name} is not a gauge or counter of the catalogue")
                found.values.setdefault(name, {})[labels] = value
        return Snapshot(found.values | self._process.values(), found.histograms)


def _tally(one: Distribution) -> Tally:
    return Tally(list(one.counts), one.total, dict(one.exemplars))


def instruments_of(registry: Registry) -> Snapshot:
    """Return the current values of the counters and histograms alone."""
    values = {name: dict(counter.values) for name, counter in registry.counters.items()}
    histograms = {
        name: {labels: _tally(one) for labels, one in histogram.values.items()}
        for name, histogram in registry.histograms.items()
    }
    return Snapshot(values, histograms)


class OwnProcess:
    """CPU, memory and open files of this process, by the names of Prometheus' client libraries."""

    def __init__(self) -> None:
        self._collector = ProcessCollector(registry=CollectorRegistry())

    def values(self) -> dict[str, dict[Labels, float]]:
        """Return the values without labels. A value that the system does not report is missing."""
        found = {family.name: family.samples[0].value for family in self._collector.collect() if family.samples}
        return {spec.name: {(): found[spec.name]} for spec in PROCESS if spec.name in found}
