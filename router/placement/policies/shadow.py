"""Shadow policies: they decide beside the policy of a route, are never obeyed, and are compared with it.

A shadow decision reads the views of the real one, so it costs no GPU time, and CPU time for at most `PER_S` decisions
per second and process. At 0.15 ms a decision, that is 1.5 % of a core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from policies.view import Decision, FleetView, LifecycleEvent, RequestView, WorkerId, WorkerView
from router.placement.policies.policy_runner import PolicyRunner

PER_S = 100.0
"""The most shadow decisions per second."""
_BURST = 100.0
MINUTE_S = 60.0
MINUTES_KEPT = 60


class ShadowTotals(msgspec.Struct):
    """Sums over the compared decisions of one shadow policy.

    `agreed` counts equal choices. `predicted_*` are the estimates of one request's time to first token and cached
    tokens, at the chosen worker and at the one that the shadow would have chosen. Of the chosen one, `reported_*` are
    what came: `ttfts` requests told their time to first token, `hits` their cached tokens.
    """

    decisions: int = 0
    agreed: int = 0
    failed: int = 0
    predicted_ttft_s: float = 0.0
    shadow_ttft_s: float = 0.0
    predicted_cached_tokens: int = 0
    shadow_cached_tokens: int = 0
    ttfts: int = 0
    reported_ttft_s: float = 0.0
    predicted_for_reported_ttft_s: float = 0.0
    """The predicted times to first token of the requests that told theirs."""
    hits: int = 0
    reported_cached_tokens: int = 0

    def add(self, other: ShadowTotals) -> None:
        """Add the sums of another period or process."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Sample(msgspec.Struct):
    """The shadow decisions for one request, until the request ends."""

    totals: list[ShadowTotals]
    first_token_s: float


class _Minutes:
    """The sums of one shadow policy by minute, newest last."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: deque[tuple[int, ShadowTotals]] = deque(maxlen=MINUTES_KEPT)

    def at(self, now_s: float) -> ShadowTotals:
        minute = int(now_s // MINUTE_S)
        if not self._kept or self._kept[-1][0] != minute:
            self._kept.append((minute, ShadowTotals()))
        return self._kept[-1][1]

    def since(self, start_s: float) -> ShadowTotals:
        found = ShadowTotals()
        for minute, totals in self._kept:
            if (minute + 1) * MINUTE_S > start_s:
                found.add(totals)
        return found


class RouteShadows:
    __slots__ = ("_minutes", "_runners")

    def __init__(self, runners: Sequence[PolicyRunner]) -> None:
        self._runners = tuple(runners)
        self._minutes = {runner.name: _Minutes() for runner in runners}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._minutes)

    @property
    def settings(self) -> tuple[object, ...]:
        return tuple([(runner.name, runner.settings) for runner in self._runners])

    def decide(self, request: RequestView, fleet: FleetView, decision: Decision) -> Sample:
        chosen = _view(fleet, decision.ranked[0])
        compared = []
        for runner in self._runners:
            totals = self._minutes[runner.name].at(fleet.now_s)
            failures = runner.fallbacks
            other = _view(fleet, runner.decide(request, fleet).ranked[0])
            totals.failed += runner.fallbacks - failures
            _compare(totals, chosen, other)
            compared.append(totals)
        return Sample(compared, ttft_s(chosen))

    def observe(self, event: LifecycleEvent) -> None:
        for runner in self._runners:
            runner.observe(event)

    def compared(self, now_s: float, window_s: float) -> dict[str, ShadowTotals]:
        """Return the sums of each shadow policy over the last `window_s` seconds, in whole minutes."""
        return {name: minutes.since(now_s - window_s) for name, minutes in self._minutes.items()}


class ShadowBudget:
    """Limits shadow decisions to `PER_S` per second."""

    __slots__ = ("_left", "_seen_s", "skipped")

    def __init__(self) -> None:
        self._left = _BURST
        self._seen_s = 0.0
        self.skipped = 0
        """Sampled requests that no shadow policy saw, because the budget was used up."""

    def take(self, decisions: int, now_s: float) -> bool:
        self._left = min(_BURST, self._left + PER_S * max(0.0, now_s - self._seen_s))
        self._seen_s = now_s
        if self._left < decisions:
            self.skipped += 1
            return False
        self._left -= decisions
        return True


def first_token(sample: Sample, ttft_s: float) -> None:
    for totals in sample.totals:
        totals.ttfts += 1
        totals.reported_ttft_s += ttft_s
        totals.predicted_for_reported_ttft_s += sample.first_token_s


def finished(sample: Sample, cached_tokens: int | None) -> None:
    if cached_tokens is not None:
        for totals in sample.totals:
            totals.hits += 1
            totals.reported_cached_tokens += cached_tokens


def ttft_s(view: WorkerView) -> float:
    return view.queue_wait_s + view.kv_wait_s + view.prefill_s


def _compare(totals: ShadowTotals, chosen: WorkerView, other: WorkerView) -> None:
    totals.decisions += 1
    totals.agreed += chosen.id == other.id
    totals.predicted_ttft_s += ttft_s(chosen)
    totals.shadow_ttft_s += ttft_s(other)
    totals.predicted_cached_tokens += chosen.cached_tokens
    totals.shadow_cached_tokens += other.cached_tokens


def _view(fleet: FleetView, worker: WorkerId) -> WorkerView:
    place = fleet.row_of(worker)
    assert place is not None, "the policy runner has checked it"
    return fleet.worker(place)
