"""The traffic of the last hour in points of ten seconds, from the differences of the metrics."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import accumulate

import msgspec

from backends.vllm.histogram_bounds import ITL_S, TTFT_S
from router.telemetry.instruments import Labels
from router.telemetry.snapshot import Snapshot, Tally

INTERVAL_S = 10.0
KEPT = 360
_TTFT = "warmroute_time_to_first_token_seconds"
_GAPS = "warmroute_inter_token_latency_seconds"
_PROMPTS = "warmroute_request_prompt_tokens"
_OUTPUTS = "warmroute_request_output_tokens"
_ERRORS = "warmroute_errors"
_CACHED = "warmroute_reported_cached_tokens"
_HELD = "warmroute_held_requests"
_QUEUED = "warmroute_queued_requests"

Key = tuple[str, str]
"""A route and a model."""
Observed = tuple[list[int], float]
"""Counts by bucket, and the sum of the values."""
_NONE: Observed = ([], 0.0)


class RouteTraffic(msgspec.Struct, frozen=True):
    """The traffic of one route and model: streams that began, answers that ended, and output tokens, each per second.
    Times are quantiles, null without observations."""

    route: str
    model: str
    streams_per_s: float
    answers_per_s: float
    output_tokens_per_s: float
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    gap_p50_s: float | None
    gap_p95_s: float | None


class TrafficPoint(msgspec.Struct, frozen=True):
    """The traffic of the `seconds` before `at`, which is in seconds since 1970.

    `cached_share` is the share of prompt tokens that workers reported as cached. `errors` counts the gateway's own
    errors by phase. `held` and `queued` count the requests that waited at the end.
    """

    at: float
    seconds: float
    routes: list[RouteTraffic]
    cached_share: float | None
    errors: dict[str, int]
    held: int
    queued: int


class TrafficHistory:
    """Read the metrics every `INTERVAL_S` by `read`, and keep what has changed between two reads."""

    def __init__(self, read: Callable[[], Awaitable[Snapshot]], clock: Callable[[], float] = time.time) -> None:
        self._read = read
        self._clock = clock
        self._points: deque[TrafficPoint] = deque(maxlen=KEPT)
        self._before: tuple[float, Snapshot] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def points(self) -> Sequence[TrafficPoint]:
        """The points, oldest first."""
        return self._points

    def start(self) -> None:
        """Begin to read on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="traffic-history")

    async def aclose(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def observe(self, snapshot: Snapshot) -> None:
        """Add a point for the time since the snapshot before."""
        at = self._clock()
        if self._before is not None and at > self._before[0]:
            self._points.append(_point(at, at - self._before[0], self._before[1], snapshot))
        self._before = at, snapshot

    def statistics(self) -> dict[str, int]:
        """Return the number of points."""
        return {"points": len(self._points)}

    async def _follow(self) -> None:
        while True:
            self.observe(await self._read())
            await asyncio.sleep(INTERVAL_S)


def _point(at: float, seconds: float, before: Snapshot, now: Snapshot) -> TrafficPoint:
    ttft, gaps = _since(before, now, _TTFT), _since(before, now, _GAPS)
    outputs, prompts = _since(before, now, _OUTPUTS), _since(before, now, _PROMPTS)
    keys = sorted(key for key in ttft | outputs if sum(ttft.get(key, _NONE)[0]) or sum(outputs.get(key, _NONE)[0]))
    prompt_tokens = sum(total for _, total in prompts.values())
    cached = _sum(now.values.get(_CACHED, {})) - _sum(before.values.get(_CACHED, {}))
    return TrafficPoint(
        at=round(at, 3),
        seconds=round(seconds, 3),
        routes=[_route(key, seconds, ttft.get(key), gaps.get(key), outputs.get(key)) for key in keys],
        cached_share=round(min(1.0, max(0.0, cached) / prompt_tokens), 4) if prompt_tokens > 0 else None,
        errors=_errors(before, now),
        held=int(_sum(now.values.get(_HELD, {}))),
        queued=int(_sum(now.values.get(_QUEUED, {}))),
    )


def _route(
    key: Key, seconds: float, ttft: Observed | None, gaps: Observed | None, outputs: Observed | None
) -> RouteTraffic:
    return RouteTraffic(
        route=key[0],
        model=key[1],
        streams_per_s=round((sum(ttft[0]) if ttft else 0) / seconds, 3),
        answers_per_s=round((sum(outputs[0]) if outputs else 0) / seconds, 3),
        output_tokens_per_s=round((outputs[1] if outputs else 0.0) / seconds, 1),
        ttft_p50_s=_quantile(ttft, TTFT_S, 0.5),
        ttft_p95_s=_quantile(ttft, TTFT_S, 0.95),
        gap_p50_s=_quantile(gaps, ITL_S, 0.5),
        gap_p95_s=_quantile(gaps, ITL_S, 0.95),
    )


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


def _quantile(observed: Observed | None, bounds: Sequence[float], share: float) -> float | None:
    """Return the value below which `share` of the observations lie, between the bounds of its bucket by its place."""
    counts = observed[0] if observed is not None else []
    wanted = share * sum(counts)
    if not wanted:
        return None
    sums = list(accumulate(counts))
    place = next(index for index, seen in enumerate(sums) if seen >= wanted)
    if place == len(bounds):
        return bounds[-1]
    low = bounds[place - 1] if place else 0.0
    return float(f"{low + (bounds[place] - low) * (wanted - sums[place] + counts[place]) / counts[place]:.4g}")


def _errors(before: Snapshot, now: Snapshot) -> dict[str, int]:
    earlier, phases = before.values.get(_ERRORS, {}), dict[str, int]()
    for labels, count in now.values.get(_ERRORS, {}).items():
        new = int(count - earlier.get(labels, 0.0))
        if new > 0:
            phases[labels[1]] = phases.get(labels[1], 0) + new
    return phases


def _sum(values: Mapping[Labels, float]) -> float:
    return sum(values.values())
