"""The instruments of one process, by their names in the catalogue."""

from __future__ import annotations

from typing import Any

from router.metrics.catalogue import CATALOGUE, Kind
from router.metrics.instruments import Counter, Histogram, Labels

COMPILED = not __file__.endswith(".py")
"""Whether the hot path, of which this module is a part, is compiled."""
_SPECS = {spec.name: spec for spec in CATALOGUE}


class Registry:
    """The instruments in use, by catalogue name. A name or kind that is not in the catalogue raises KeyError."""

    def __init__(self) -> None:
        self.counters: dict[str, Counter] = {}
        self.histograms: dict[str, Histogram] = {}

    def counter(self, name: str) -> Counter:
        """Return the counter ``warmroute_{name}``."""
        return self.counters.setdefault(_declared(name, Kind.COUNTER), Counter())

    def histogram(self, name: str) -> Histogram:
        """Return the histogram ``warmroute_{name}``."""
        full = _declared(name, Kind.HISTOGRAM)
        return self.histograms.setdefault(full, Histogram(_SPECS[full].buckets))

    def forget(self, label: str, value: str) -> None:
        """Drop every series whose `label` is `value`, because its worker has left."""
        for name, counter in self.counters.items():
            _drop(counter.values, _SPECS[name].labels, label, value)
        for name, histogram in self.histograms.items():
            _drop(histogram.values, _SPECS[name].labels, label, value)


def _drop(series: dict[Labels, Any], names: tuple[str, ...], label: str, value: str) -> None:
    if label in names:
        at = names.index(label)
        for key in [key for key in series if key[at] == value]:
            del series[key]


def _declared(name: str, kind: Kind) -> str:
    full = f"warmroute_{name}"
    if _SPECS[full].kind is not kind:
        raise KeyError(f"{full} is not declared as a {kind}")
    return full
