"""All metrics as values, or as Prometheus text for ``/metrics`` on the admin port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector

from router.metrics.catalogue import CATALOGUE, PROCESS, Kind
from router.metrics.instruments import Distribution, Labels
from router.metrics.registry import Registry
from router.telemetry.snapshot import Snapshot, Tally, page

Reading = tuple[str, Labels, float]
"""A value read at scrape time: full metric name, label values, value."""

Readings = Callable[[], Iterable[Reading]]
_DECLARED = {spec.name for spec in CATALOGUE if spec.kind is not Kind.HISTOGRAM}


class Exposition:
    """The values of a `Registry`, `readings` made at scrape time, and the system's metrics of this process.

    `readings` may name only gauges and counters of the catalogue. Others raise KeyError at a scrape.
    """

    def __init__(self, registry: Registry, readings: Sequence[Readings] = ()) -> None:
        self._instruments = registry
        self._readings = tuple(readings)
        self._process = OwnProcess()

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the page and its content type, by the Accept header `accept`."""
        return page(self.snapshot(), accept)

    def snapshot(self) -> Snapshot:
        found = instruments_of(self._instruments)
        for source in self._readings:
            _read(source, found.values)
        return Snapshot(found.values | self._process.values(), found.histograms)

    async def gathered(self) -> Snapshot:
        """Return all current values, and let the event loop run between the parts that they come from."""
        found = instruments_of(self._instruments)
        for source in self._readings:
            await asyncio.sleep(0)
            _read(source, found.values)
        return Snapshot(found.values | self._process.values(), found.histograms)


def _read(source: Readings, values: dict[str, dict[Labels, float]]) -> None:
    for name, labels, value in source():
        if name not in _DECLARED:
            raise KeyError(f"{name} is not a gauge or counter of the catalogue")
        values.setdefault(name, {})[labels] = value


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
