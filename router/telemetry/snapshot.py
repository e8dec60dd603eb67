"""The metrics of one process as values, the merged metrics of several, and their Prometheus text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Exemplar, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from router.metrics.catalogue import CATALOGUE, PROCESS, Kind, Merge, MetricSpec
from router.metrics.instruments import Exemplar as Traced
from router.metrics.instruments import Labels


class Tally(msgspec.Struct, array_like=True):
    """One histogram: observations per bucket, of which the last bucket is above all bounds, the sum of the values, and
    the latest traced observation of some buckets by their place.
    """

    counts: list[int]
    total: float
    exemplars: dict[int, Traced] = {}


class Snapshot(msgspec.Struct):
    """Counters and gauges, and histograms, by catalogue name and label values."""

    values: dict[str, dict[Labels, float]]
    histograms: dict[str, dict[Labels, Tally]]


_MERGES: Mapping[Merge, Callable[[float, float], float]] = {
    Merge.SUM: lambda one, other: one + other,
    Merge.MAX: max,
    Merge.MIN: min,
}
_OPENMETRICS = "application/openmetrics-text"
_SPECS = (*CATALOGUE, *PROCESS)


def merged(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Merge snapshots, each metric by its `MetricSpec.merge`."""
    total = Snapshot({}, {})
    merges = {spec.name: _MERGES[spec.merge] for spec in _SPECS}
    for snapshot in snapshots:
        for name, values in snapshot.values.items():
            _merge_values(total.values.setdefault(name, {}), values, merges[name])
        for name, tallies in snapshot.histograms.items():
            _merge_tallies(total.histograms.setdefault(name, {}), tallies)
    return total


def lasting(snapshot: Snapshot) -> Snapshot:
    """Return the counters of a process that has ended. Without them the sums over all processes would fall."""
    counters = {spec.name for spec in _SPECS if spec.kind is Kind.COUNTER and spec.merge is Merge.SUM}
    return Snapshot({name: snapshot.values[name] for name in snapshot.values.keys() & counters}, snapshot.histograms)


def page(snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics in the catalogue's order, and their content type.

    `accept` is the Accept header. A scraper that takes OpenMetrics gets it, with exemplars; others get Prometheus text.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(snapshot))
    if any(kind.split(";")[0].strip().lower() == _OPENMETRICS for kind in accept.split(",")):
        encoded: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
        return encoded, openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


def _merge_values(
    into: dict[Labels, float], values: Mapping[Labels, float], merge: Callable[[float, float], float]
) -> None:
    for labels, value in values.items():
        into[labels] = merge(into[labels], value) if labels in into else value


def _merge_tallies(into: dict[Labels, Tally], tallies: Mapping[Labels, Tally]) -> None:
    for labels, tally in tallies.items():
        before = into.get(labels)
        if before is None:
            into[labels] = tally
        else:
            counts = [one + other for one, other in zip(before.counts, tally.counts, strict=True)]
            into[labels] = Tally(counts, before.total + tally.total, _newest(before.exemplars, tally.exemplars))


def _newest(one: Mapping[int, Traced], other: Mapping[int, Traced]) -> dict[int, Traced]:
    newest = dict(one)
    for bucket, traced in other.items():
        if bucket not in newest or traced[2] > newest[bucket][2]:
            newest[bucket] = traced
    return newest


class _Families(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        """Describe nothing in advance."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of the catalogue, and the system's metrics of the process."""
        for spec in _SPECS:
            yield self._family(spec)

    def _family(self, spec: MetricSpec) -> Metric:
        if spec.kind is Kind.HISTOGRAM:
            return _histogram(spec, self._snapshot.histograms.get(spec.name, {}))
        family = (CounterMetricFamily if spec.kind is Kind.COUNTER else GaugeMetricFamily)(
            spec.name, spec.help, labels=spec.labels
        )
        for labels, value in self._snapshot.values.get(spec.name, {}).items():
            family.add_metric(labels, value)
        return family


def _histogram(spec: MetricSpec, tallies: Mapping[Labels, Tally]) -> Metric:
    family = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
    bounds = [*map(str, spec.buckets), "+Inf"]
    for labels, tally in tallies.items():
        totals = zip(bounds, accumulate(map(float, tally.counts)), strict=True)
        buckets = [_bucket(bound, total, tally.exemplars.get(place)) for place, (bound, total) in enumerate(totals)]
        family.add_metric(labels, buckets, tally.total)
    return family


def _bucket(bound: str, total: float, traced: Traced | None) -> tuple[str, float] | tuple[str, float, Exemplar]:
    if traced is None:
        return bound, total
    trace_id, value, at_s = traced
    return bound, total, Exemplar({"trace_id": trace_id}, value, at_s)
