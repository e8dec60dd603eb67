"""What a condition looks at: an expression over metrics that Prometheus and the gateway itself can both read.

`promql` is the expression for an alert's rule, and `read` its value here. A metric here is that of all processes of one
gateway, so the labels `job` and `instance` have no meaning in `read`.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from operator import eq, gt, lt
from typing import Literal, Protocol

from router.metrics.catalogue import CATALOGUE, PROCESS
from router.metrics.instruments import Labels
from router.telemetry.snapshot import Snapshot, Tally

Vector = Mapping[Labels, float]
"""Values by the labels that an expression keeps, in the order of its `by`."""
Fold = Literal["max", "sum", "avg"]
Test = Literal[">", "<", "=="]
KEPT_S = 960.0
"""How long earlier values are kept: the longest window of a condition, and one interval."""

_SPECS = {spec.name: spec for spec in (*CATALOGUE, *PROCESS)}
_TERM = re.compile(r'\b(\w+)(=~|!=|=)"([^"]*)"')
_FOLDS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "max": max,
    "sum": sum,
    "avg": lambda values: sum(values) / len(values),
}
_TESTS: Mapping[str, Callable[[float, float], bool]] = {">": gt, "<": lt, "==": eq}
_FLEET = ("job",)
_GATEWAY = ("job", "instance")


@dataclass(slots=True)
class MetricsSeen:
    now: Snapshot = field(default_factory=lambda: Snapshot({}, {}))
    at_s: float = 0.0
    _earlier: dict[Expression, deque[tuple[float, Vector]]] = field(default_factory=lambda: defaultdict(deque))

    def keep(self, one: Expression, value: Vector) -> Sequence[tuple[float, Vector]]:
        """Keep a value of now, and return all of the last `KEPT_S`, oldest first."""
        kept = self._earlier[one]
        if not kept or kept[-1][0] < self.at_s:
            kept.append((self.at_s, value))
        while kept[0][0] < self.at_s - KEPT_S:
            kept.popleft()
        return kept


class Expression(Protocol):
    """A part of a signal, or a whole one. Expressions are values, so that equal ones share their history."""

    @property
    def promql(self) -> str: ...
    def read(self, seen: MetricsSeen) -> Vector: ...
    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Metric:
    """The series of one metric whose labels match `where`, a selector of Prometheus without its braces."""

    name: str
    where: str = ""

    @property
    def promql(self) -> str:
        return _SPECS[self.full].exported_name + (f"{{{self.where}}}" if self.where else "")

    @property
    def full(self) -> str:
        return self.name if self.name in _SPECS else f"warmroute_{self.name}"

    def grouped(self, series: Mapping[Labels, float], by: Sequence[str]) -> dict[Labels, list[float]]:
        """Return the values of matching series by the labels `by`."""
        groups: dict[Labels, list[float]] = {}
        for labels, value in series.items():
            named = dict(zip(_SPECS[self.full].labels, labels, strict=True))
            if all(_matches(named.get(label, ""), test, text) for label, test, text in _TERM.findall(self.where)):
                groups.setdefault(tuple(named[label] for label in by), []).append(value)
        return groups


def _matches(value: str, test: str, text: str) -> bool:
    if test == "=~":
        return re.fullmatch(text, value) is not None
    return (value == text) is (test == "=")


@dataclass(frozen=True, slots=True)
class Level:
    """A gauge now, folded over all other labels than `by`."""

    metric: Metric
    by: tuple[str, ...] = ()
    fold: Fold = "max"
    of: tuple[str, ...] = _FLEET

    @property
    def promql(self) -> str:
        return f"{self.fold} by ({', '.join((*self.of, *self.by))}) ({self.metric.promql})"

    def read(self, seen: MetricsSeen) -> Vector:
        groups = self.metric.grouped(seen.now.values.get(self.metric.full, {}), self.by)
        return {key: _FOLDS[self.fold](values) for key, values in groups.items()}


@dataclass(frozen=True, slots=True)
class Mean:
    level: Level

    @property
    def promql(self) -> str:
        return f"avg by (job) ({self.level.promql})"

    def read(self, seen: MetricsSeen) -> Vector:
        """Return the mean; nothing without series."""
        values = self.level.read(seen)
        return {(): sum(values.values()) / len(values)} if values else {}


@dataclass(frozen=True, slots=True)
class Lowest:
    """The lowest value of a gauge in the last `minutes`."""

    metric: Metric
    minutes: int

    @property
    def promql(self) -> str:
        return f"sum by (job) (min_over_time({self.metric.promql}[{self.minutes}m]))"

    def read(self, seen: MetricsSeen) -> Vector:
        """Return the lowest value; nothing before the time has passed."""
        now = Level(self.metric, fold="sum").read(seen)
        kept = seen.keep(self, now)
        if kept[0][0] > seen.at_s - 60.0 * self.minutes:
            return {}
        return {(): min(value.get((), 0.0) for at_s, value in kept if at_s >= seen.at_s - 60.0 * self.minutes)}


@dataclass(frozen=True, slots=True)
class Risen:
    """By how much a counter has risen in the last `minutes`."""

    metric: Metric
    minutes: int
    by: tuple[str, ...] = ()
    of: tuple[str, ...] = _FLEET
    rate: bool = False

    @property
    def promql(self) -> str:
        """The expression; the rise per second with `rate`, which only a ratio may have."""
        risen = f"{'rate' if self.rate else 'increase'}({self.metric.promql}[{self.minutes}m])"
        return f"sum by ({', '.join((*self.of, *self.by))}) ({risen})"

    def read(self, seen: MetricsSeen) -> Vector:
        """Return the rise. Counters begin at 0, so that the first count of a series is a rise, too."""
        groups = self.metric.grouped(seen.now.values.get(self.metric.full, {}), self.by)
        now = {key: sum(values) for key, values in groups.items()}
        since_s = seen.at_s - 60.0 * self.minutes
        kept = seen.keep(self, now)
        before = next(value for at_s, value in kept if at_s >= since_s) if len(kept) > 1 else {}
        return {key: value - before.get(key, 0.0) for key, value in now.items()}


@dataclass(frozen=True, slots=True)
class Ratio:
    """One expression over another with the same labels. `on`: the labels by which Prometheus matches the two.

    Where the sum of both is below `least` there is no value here, because a few requests say little.
    """

    upper: Expression
    lower: Expression
    on: tuple[str, ...] = ()
    least: float = 0.0

    @property
    def promql(self) -> str:
        on = f"on ({', '.join(self.on)}) " if self.on else ""
        return f"{self.upper.promql}\n/ {on}{self.lower.promql}"

    def read(self, seen: MetricsSeen) -> Vector:
        """Return the ratio. Over 0 it is infinite, as in Prometheus."""
        upper, lower = self.upper.read(seen), self.lower.read(seen)
        return {
            key: upper.get(key, 0.0) / under if under else inf
            for key, under in {**dict.fromkeys(upper, 0.0), **lower}.items()
            if upper.get(key, 0.0) + under >= max(self.least, 1e-9) and (under or upper.get(key))
        }


@dataclass(frozen=True, slots=True)
class Late:
    """A quantile of a histogram over the last `minutes`, of each gateway."""

    name: str
    quantile: float
    minutes: int

    @property
    def promql(self) -> str:
        rate = f"rate(warmroute_{self.name}_bucket[{self.minutes}m])"
        return f"histogram_quantile({self.quantile:g}, sum by (job, instance, le) ({rate}))"

    def read(self, seen: MetricsSeen) -> Vector:
        """Return the upper bound of the bucket that has the quantile; nothing without observations."""
        counts = _counts(seen.now.histograms.get(f"warmroute_{self.name}", {}).values())
        kept = seen.keep(self, {(str(place),): float(count) for place, count in enumerate(counts)})
        before = next(value for at_s, value in kept if at_s >= seen.at_s - 60.0 * self.minutes)
        risen = [count - before.get((str(place),), 0.0) for place, count in enumerate(counts)]
        total = sum(risen)
        if not total:
            return {}
        bounds = (*_SPECS[f"warmroute_{self.name}"].buckets, inf)
        sums = zip(bounds, accumulate(risen), strict=True)
        return {(): next(bound for bound, upto in sums if upto >= self.quantile * total)}


def _counts(tallies: Iterable[Tally]) -> list[int]:
    return [sum(column) for column in zip(*(tally.counts for tally in tallies), strict=True)]


@dataclass(frozen=True, slots=True)
class Gauge:
    metric: Metric

    @property
    def promql(self) -> str:
        return self.metric.promql

    def read(self, seen: MetricsSeen) -> Vector:
        return Level(self.metric, fold="sum").read(seen)


@dataclass(frozen=True, slots=True)
class Signal:
    """An expression, and how its value shows that the condition holds."""

    expression: Expression
    test: Test
    bound: float

    @property
    def promql(self) -> str:
        return f"{self.expression.promql} {self.test} {self.bound:g}"

    def read(self, seen: MetricsSeen) -> Vector:
        test = _TESTS[self.test]
        return {key: value for key, value in self.expression.read(seen).items() if test(value, self.bound)}


@dataclass(frozen=True, slots=True)
class Joined:
    """Two signals, of which both must hold for the same labels. `on`: the labels by which Prometheus matches them."""

    first: Signal
    second: Signal
    on: tuple[str, ...]

    @property
    def promql(self) -> str:
        return f"{self.first.promql}\nand on ({', '.join(self.on)}) {self.second.promql}"

    def read(self, seen: MetricsSeen) -> Vector:
        """Return the values of the first signal."""
        first, second = self.first.read(seen), self.second.read(seen)
        return {key: value for key, value in first.items() if key in second}


@dataclass(frozen=True, slots=True)
class Absent:
    """That Prometheus has no series of a metric. A gateway that runs never sees that."""

    metric: Metric

    @property
    def promql(self) -> str:
        return f"absent({self.metric.promql})"

    def read(self, seen: MetricsSeen) -> Vector:
        """Return nothing."""
        return {}


def level(name: str, test: Test, bound: float, *by: str, where: str = "", of: tuple[str, ...] = _FLEET) -> Signal:
    """Return the signal that the highest value of a gauge, by the labels `by`, passes a test."""
    return Signal(Level(Metric(name, where), by, of=of), test, bound)


def risen(name: str, minutes: int, *by: str, where: str = "", of: tuple[str, ...] = _FLEET) -> Signal:
    return Signal(Risen(Metric(name, where), minutes, by, of), ">", 0)


def gateway_level(name: str, test: Test, bound: float, where: str = "") -> Signal:
    return level(name, test, bound, where=where, of=_GATEWAY)


def gateway_risen(name: str, minutes: int, *by: str, where: str = "") -> Signal:
    return risen(name, minutes, *by, where=where, of=_GATEWAY)


def share(
    name: str,
    minutes: int,
    bound: float,
    test: Test,
    by: tuple[str, ...],
    where: str,
    *,
    least: float,
    of: str = "",
) -> Signal:
    """Return the signal that the matching part of a counter's rise, over that with `of`, passes a test."""
    upper = Risen(Metric(name, where), minutes, by, rate=True)
    lower = Risen(Metric(name, of), minutes, by, rate=True)
    return Signal(Ratio(upper, lower, least=least), test, bound)
