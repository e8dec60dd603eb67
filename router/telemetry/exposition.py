"""All metrics as Prometheus text, for the admin port's ``/metrics``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from router.telemetry.catalogue import CATALOGUE, Kind, MetricSpec
from router.telemetry.instruments import Distribution, Histogram, Labels
from router.telemetry.metrics import Registry

Reading = tuple[str, Labels, float]
"""A value read at scrape time: full metric name, label values, value."""

Readings = Callable[[], Iterable[Reading]]


class Exposition(Collector):
    """Renders a `Registry`, and `readings` taken at scrape time, in the catalogue's order.

    `readings` may name gauges and counters of the catalogue only; others are a KeyError when scraped.
    """

    def __init__(self, registry: Registry, readings: Sequence[Readings] = ()) -> None:
        self._instruments = registry
        self._readings = tuple(readings)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self) -> tuple[bytes, str]:
        """The page and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def describe(self) -> Iterable[Metric]:
        """Nothing up front: registering must not take readings."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every metric of the catalogue."""
        read = self._read()
        for spec in CATALOGUE:
            yield self._family(spec, read.get(spec.name, {}))

    def _read(self) -> dict[str, dict[Labels, float]]:
        read: dict[str, dict[Labels, float]] = defaultdict(dict)
        declared = {spec.name for spec in CATALOGUE if spec.kind is not Kind.HISTOGRAM}
        for source in self._readings:
            for name, labels, value in source():
                if name not in declared:
                    raise KeyError(f"{name} is not a gauge or counter of the catalogue")
                read[name][labels] = value
        return read

    def _family(self, spec: MetricSpec, read: dict[Labels, float]) -> Metric:
        if spec.kind is Kind.HISTOGRAM:
            return _histogram(spec, self._instruments.histograms.get(spec.name))
        family = (CounterMetricFamily if spec.kind is Kind.COUNTER else GaugeMetricFamily)(
            spec.name, spec.help, labels=spec.labels
        )
        counter = self._instruments.counters.get(spec.name)
        for labels, value in {**(counter.values if counter else {}), **read}.items():
            family.add_metric(labels, value)
        return family


def _histogram(spec: MetricSpec, histogram: Histogram | None) -> Metric:
    family = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
    for labels, distribution in histogram.values.items() if histogram else ():
        family.add_metric(labels, _cumulative(distribution), distribution.total)
    return family


def _cumulative(distribution: Distribution) -> list[tuple[str, float]]:
    bounds = [str(bound) for bound in distribution.bounds]
    return list(zip([*bounds, "+Inf"], accumulate(map(float, distribution.counts)), strict=True))
