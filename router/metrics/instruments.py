"""Counters and histograms as plain values.

prometheus-client's own instruments take a lock and several calls per observation, too much for a data plane that
observes every streamed token. All writers and the reader run on the event loop's thread, so no lock is needed here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

Labels = tuple[str, ...]
Reading = tuple[str, Labels, float]
"""A value that a part reads at scrape time: full metric name, label values, value."""
Exemplar = tuple[str, float, float]
"""A request's trace id, its value, and when it was observed: seconds since 1970."""


class Counter:
    """Monotonic sums by label values."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: dict[Labels, float] = {}

    def add(self, amount: float = 1.0, labels: Labels = ()) -> None:
        """Raise the sum under `labels` by `amount`."""
        self.values[labels] = self.values.get(labels, 0.0) + amount


class Distribution:
    """One histogram. ``counts[i]`` is the number of observations in the bucket that ends at ``bounds[i]``; the last
    count is for observations above all bounds.
    """

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}
        """The latest traced observation of each bucket, by its place in `counts`."""

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Count many values; this is cheaper than one call for each."""
        bounds, counts = self.bounds, self.counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self.total += sum(values)


class Histogram:
    """Distributions by label values."""

    __slots__ = ("bounds", "values")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.values: dict[Labels, Distribution] = {}

    def at(self, labels: Labels = ()) -> Distribution:
        """The distribution under `labels`, made on first use."""
        found = self.values.get(labels)
        if found is None:
            found = self.values[labels] = Distribution(self.bounds)
        return found

    def observe(self, value: float, labels: Labels = ()) -> None:
        """Count one value under `labels`."""
        found = self.values.get(labels)
        if found is None:
            found = self.at(labels)
        found.counts[bisect_left(found.bounds, value)] += 1
        found.total += value

    def exemplify(self, value: float, labels: Labels, trace_id: str, at_s: float) -> None:
        """Keep a value that was just counted as the exemplar of its bucket."""
        found = self.at(labels)
        found.exemplars[bisect_left(found.bounds, value)] = (trace_id, value, at_s)
