"""The traffic of the last hour in points of ten seconds, from the differences of the metrics."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec

from backends.vllm.histogram_bounds import ITL_S, TTFT_S
from router.metrics.instruments import Labels
from router.telemetry.histogram import quantile
from router.telemetry.snapshot import Snapshot, Tally

KEPT = 360
_TTFT = "warmroute_time_to_first_token_seconds"
_GAPS = "warmroute_inter_token_latency_seconds"
_OUTPUTS = "warmroute_request_output_tokens"
_ERRORS = "warmroute_errors"
_ROUTE_TOKENS = "warmroute_route_prompt_tokens"
_MISROUTED = "warmroute_misrouted_requests"
_COMPARED = "warmroute_cached_comparisons"
_HELD = "warmroute_held_requests"
_QUEUED = "warmroute_queued_requests"
_CLASS_WAITING = "warmroute_class_waiting_requests"
_CLASS_SECONDS = "warmroute_class_waiting_seconds"
_CLASS_TENANTS = "warmroute_class_tenant_waiting_requests"
_CLASS_REFUSALS = "warmroute_class_refusals"
_CLASS_LEVELS = "warmroute_class_service_level_requests"

Key = tuple[str, str]
"""A route and a model."""
Observed = tuple[list[int], float]
"""Counts by bucket, and the sum of the values."""
Risen = dict[Labels, float]
"""By how much the series of a counter have risen."""
_NONE: Observed = ([], 0.0)
NOWHERE: Key = ("", "")
"""The labels of requests that were refused before their route was known."""


class RouteTraffic(msgspec.Struct, frozen=True):
    """The traffic of one route and model: streams that began, answers that ended, and output tokens, each per second.
    Times are quantiles, null without observations. `cached_share`, `errors` and `held` are those of a point."""

    route: str
    model: str
    streams_per_s: float
    answers_per_s: float
    output_tokens_per_s: float
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    gap_p50_s: float | None
    gap_p95_s: float | None
    cached_share: float | None
    errors: dict[str, int]
    held: int


class ClassTraffic(msgspec.Struct, frozen=True):
    """One class of requests: those that wait at the end of a point and their work in seconds of a worker, by tenant
    too, and those refused in its time. `level_share` is the share of its streams that met their service level, null
    without streams that have one."""

    request_class: str
    waiting: int
    work_s: float
    tenants: dict[str, int]
    refused: int
    level_share: float | None


class TrafficPoint(msgspec.Struct, frozen=True):
    """The traffic of the `seconds` before `at`, which is in seconds since 1970.

    `cached_share` is the share of prompt tokens that were cached, of answers that report it. `misrouted_share` is the
    share of compared answers that found fewer cached tokens than predicted, and fewer than another worker was predicted
    to have. `classes` is empty without classes. `errors` counts the gateway's own errors by phase, and `held` and
    `queued` the requests that waited at the end.
    """

    at: float
    seconds: float
    routes: list[RouteTraffic]
    cached_share: float | None
    misrouted_share: float | None
    errors: dict[str, int]
    held: int
    queued: int
    classes: list[ClassTraffic] = []


class TrafficHistory:
    """Keep what has changed between two looks at the metrics."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._points: deque[TrafficPoint] = deque(maxlen=KEPT)
        self._before: tuple[float, Snapshot] | None = None

    @property
    def points(self) -> Sequence[TrafficPoint]:
        return self._points

    def observe(self, snapshot: Snapshot) -> None:
        """Add a point for the time since the snapshot before."""
        at = self._clock()
        if self._before is not None and at > self._before[0]:
            self._points.append(_Period(self._before[1], snapshot, at - self._before[0]).point(at))
        self._before = at, snapshot


class _Period:
    """What has changed between two snapshots, `seconds` apart."""

    def __init__(self, before: Snapshot, now: Snapshot, seconds: float) -> None:
        self._before, self._now, self._seconds = before, now, seconds
        self._ttft, self._gaps, self._outputs = (_since(before, now, name) for name in (_TTFT, _GAPS, _OUTPUTS))
        self._tokens, self._errors = self._risen(_ROUTE_TOKENS), self._errors_by_route()
        self._tokens_of, self._errors_of = _by_key(self._tokens), _by_key(self._errors)
        self._held = now.values.get(_HELD, {})

    def point(self, at: float) -> TrafficPoint:
        """Return the point of this period, which ended `at`."""
        return TrafficPoint(
            at=round(at, 3),
            seconds=round(self._seconds, 3),
            routes=[self._route(key) for key in sorted(self._keys())],
            cached_share=_cached_share(self._tokens),
            misrouted_share=_share(_sum(self._risen(_MISROUTED)), _sum(self._risen(_COMPARED))),
            errors=_by_last(self._errors),
            held=int(_sum(self._held)),
            queued=int(_sum(self._now.values.get(_QUEUED, {}))),
            classes=[self._class(name) for (name,) in self._now.values.get(_CLASS_WAITING, {})],
        )

    def _class(self, name: str) -> ClassTraffic:
        now, levels = self._now.values, self._of_class(self._risen(_CLASS_LEVELS), name)
        tenants = self._of_class(now.get(_CLASS_TENANTS, {}), name)
        return ClassTraffic(
            request_class=name,
            waiting=int(now[_CLASS_WAITING][name,]),
            work_s=round(now.get(_CLASS_SECONDS, {}).get((name,), 0.0), 3),
            tenants={tenant: int(number) for (_, tenant), number in tenants.items() if number},
            refused=int(_sum(self._of_class(self._risen(_CLASS_REFUSALS), name))),
            level_share=_share(_sum({key: n for key, n in levels.items() if key[-1] == "true"}), _sum(levels)),
        )

    @staticmethod
    def _of_class(series: Mapping[Labels, float], name: str) -> dict[Labels, float]:
        return {labels: value for labels, value in series.items() if labels[0] == name}

    def _keys(self) -> set[Key]:
        observed = [*self._ttft.items(), *self._outputs.items()]
        seen = {key for key, (counts, _) in observed if sum(counts)}
        return (seen | self._errors_of.keys() | {(labels[0], labels[1]) for labels in self._held}) - {NOWHERE}

    def _route(self, key: Key) -> RouteTraffic:
        ttft, gaps, outputs = (one.get(key, _NONE) for one in (self._ttft, self._gaps, self._outputs))
        return RouteTraffic(
            route=key[0],
            model=key[1],
            streams_per_s=round(sum(ttft[0]) / self._seconds, 3),
            answers_per_s=round(sum(outputs[0]) / self._seconds, 3),
            output_tokens_per_s=round(outputs[1] / self._seconds, 1),
            ttft_p50_s=_quantile(ttft, TTFT_S, 0.5),
            ttft_p95_s=_quantile(ttft, TTFT_S, 0.95),
            gap_p50_s=_quantile(gaps, ITL_S, 0.5),
            gap_p95_s=_quantile(gaps, ITL_S, 0.95),
            cached_share=_cached_share(self._tokens_of.get(key, {})),
            errors=_by_last(self._errors_of.get(key, {})),
            held=int(self._held.get(key, 0.0)),
        )

    def _errors_by_route(self) -> Risen:
        """Return the errors by route, model and phase, of all codes."""
        found: Risen = {}
        for (_, phase, route, model), count in self._risen(_ERRORS).items():
            found[route, model, phase] = found.get((route, model, phase), 0.0) + count
        return found

    def _risen(self, name: str) -> Risen:
        """Return by how much the series of a counter have risen, those that have."""
        earlier, now = self._before.values.get(name, {}), self._now.values.get(name, {})
        risen = {labels: value - earlier.get(labels, 0.0) for labels, value in now.items()}
        return {labels: value for labels, value in risen.items() if value > 0.0}


def _since(before: Snapshot, now: Snapshot, name: str) -> dict[Key, Observed]:
    """Return what a histogram has observed since `before`, by route and model, over all paths."""
    earlier: Mapping[Labels, Tally] = before.histograms.get(name, {})
    found: dict[Key, Observed] = {}
    for labels, tally in now.histograms.get(name, {}).items():
        _, route, model = labels
        old = earlier.get(labels)
        counts = (
            tally.counts if old is None else [new - past for new, past in zip(tally.counts, old.counts, strict=True)]
        )
        total = tally.total - (0.0 if old is None else old.total)
        known = found.get((route, model))
        if known is not None:
            counts, total = [one + other for one, other in zip(counts, known[0], strict=True)], total + known[1]
        found[route, model] = [max(0, count) for count in counts], max(0.0, total)
    return found


def _quantile(observed: Observed, bounds: Sequence[float], share: float) -> float | None:
    found = quantile(observed[0], bounds, share) if observed[0] else None
    return None if found is None else float(f"{found:.4g}")


def _by_key(risen: Risen) -> dict[Key, Risen]:
    """Return the series by route and model, their first two labels."""
    found: dict[Key, Risen] = {}
    for labels, value in risen.items():
        found.setdefault((labels[0], labels[1]), {})[labels] = value
    return found


def _by_last(risen: Risen) -> dict[str, int]:
    sums: dict[str, int] = {}
    for labels, value in risen.items():
        sums[labels[-1]] = sums.get(labels[-1], 0) + int(value)
    return sums


def _cached_share(tokens: Risen) -> float | None:
    return _share(_by_last(tokens).get("true", 0), _sum(tokens))


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def _sum(values: Mapping[Labels, float]) -> float:
    return sum(values.values())
