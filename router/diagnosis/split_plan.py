"""The plan of a fleet's roles: what one more worker of each would save, and the split that costs least.

The load is that of a period. The arithmetic is in `router.placement.handover_split`, one plan for each set of workers
that serve the same models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from policies.view import WorkerView
from router.config.model import HandoverConfig
from router.diagnosis import evidence
from router.diagnosis.finding import Evidence
from router.diagnosis.measured import Measured, WorkerMeasured, WorkMeasured, add_fields
from router.diagnosis.measurements import MINUTE_S
from router.placement.endpoints import DECODE, MIXED, PREFILL, FleetEndpoint
from router.placement.handover_roles import counts_as
from router.placement.handover_split import PhaseLoad, Split, best, delay_s, prices, stretched, wait_s
from router.placement.health import SERVING
from router.placement.links import LinkSpeed

ROLES = (PREFILL, DECODE, MIXED)
_BURSTS = (0.25, 4.0)
"""Bounds of `PhaseLoad.burst`."""
_WEIGHT = 0.25
"""Seconds of wait per second of prefill that count as measured at the model's estimate. Without them, the noise of an
idle fleet would look like bursts."""


class PoolMember(msgspec.Struct, frozen=True):
    """One worker, as the plan sees it now. `role` is the one that it counts as (`handover_roles.counts_as`).
    `kv_tokens` is the size of its KV cache, 0 if unknown, and `queue_wait_s` the mean over its `ranks`."""

    id: str
    role: str
    models: tuple[str, ...]
    ready: bool
    ranks: int
    kv_tokens: int
    queue_wait_s: float


class RoleCounts(msgspec.Struct, frozen=True):
    """Ready workers by role."""

    prefill: int
    decode: int
    mixed: int


class PlannedPool(msgspec.Struct, frozen=True):
    """The ready `workers` that count as one role, and what was measured of them. Without a connector, all are mixed.
    With one, a worker that may be either end of a KV handover counts as a decode worker, and a decode worker without
    the connector as a mixed one. A prefill worker without it gets no requests, and does not count.

    `price_s` is what one more of them would save: seconds of delay per second. It is null while too little is known.
    `queue_wait_s` is the mean now. Of the period: `utilisation` is the share of time for prefills, `kv_occupancy` and
    `running` are means of the workers' reports, and `gap_s` is the mean time between two tokens.
    """

    role: str
    ready: int
    workers: list[str]
    price_s: float | None
    queue_wait_s: float | None
    utilisation: float | None
    kv_occupancy: float | None
    running: float | None
    gap_s: float | None


class PlannedLoad(msgspec.Struct, frozen=True):
    """The load of the period as the model has it; means are per prefill and per answer.

    `handed_share` is the share of the prefill work that was handed over. `moved_s` is the time of a mean handover.
    `gap_s` is the time between two tokens on an idle worker, and `step_token_s` what each token of context adds to it.
    `burst` is the ratio of measured waits to those of Poisson arrivals.
    """

    prefills_per_s: float
    prompt_tokens: float
    prefill_s: float
    handed_share: float
    moved_s: float
    answers_per_s: float
    output_tokens: float
    gap_s: float
    step_token_s: float
    context_tokens: float
    kv_tokens: float
    burst: float


class SplitPlan(msgspec.Struct, frozen=True):
    """The plan for the workers that serve `models`.

    `delay_s` is the added delay under `now`, in seconds per second, `recommended_delay_s` under `recommended`, and
    `first_step_delay_s` after the first change of one worker on the way there. All are null while too little is known:
    `needs` says what.
    """

    models: tuple[str, ...]
    pools: list[PlannedPool]
    now: RoleCounts
    recommended: RoleCounts | None = None
    delay_s: float | None = None
    recommended_delay_s: float | None = None
    first_step_delay_s: float | None = None
    load: PlannedLoad | None = None
    needs: str | None = None


class FlipState(msgspec.Struct, frozen=True):
    """Changes of roles by the planner: the setting `handover.flip_roles`, the worker that drains for its new role
    `to_role`, and one line for each change that is due once it has been right for long enough. `counts` are by outcome
    since the start."""

    mode: str
    draining: str | None
    to_role: str | None
    due: list[str]
    counts: dict[str, int]


class FleetPlan(msgspec.Struct, frozen=True):
    """The plan of the fleet's roles, for the load of the last `seconds`.

    Without `connector`, roles change no decision, and `recommended` says what they would be worth. `figures` are the
    lengths of prompts and answers. `flips` is null without a connector.
    """

    seconds: float
    requests: int
    connector: str | None
    plans: list[SplitPlan]
    figures: list[Evidence]
    flips: FlipState | None = None


def looks_back_s(config: HandoverConfig) -> float:
    """Return the time of the load of a plan, in whole minutes. It is one more than asked for, because the present one
    may be short."""
    return MINUTE_S * (1 + round(config.plan_window_s / MINUTE_S))


def members(endpoints: Iterable[FleetEndpoint], views: Sequence[WorkerView], connector: str | None) -> list[PoolMember]:
    """Return the workers that may get requests and whose models are known; `views` are `Dispatcher.views`."""
    waits_s = {view.id: view.queue_wait_s for view in views}
    known = (endpoint for endpoint in endpoints if endpoint.models_known and endpoint.candidates)
    roles = ((endpoint, counts_as(endpoint.role, endpoint.labels, connector)) for endpoint in known)
    return [_member(endpoint, role, waits_s) for endpoint, role in roles if role is not None]


def _member(endpoint: FleetEndpoint, role: str, waits_s: Mapping[Any, float]) -> PoolMember:
    assert endpoint.facts is not None
    candidates = endpoint.candidates
    return PoolMember(
        endpoint.id,
        role,
        tuple(sorted(card.id for card in endpoint.facts.models if card.parent is None)),
        endpoint.state in SERVING,
        len(candidates),
        sum(candidate.capacity_tokens for candidate in candidates),
        sum(waits_s.get(candidate.id, 0.0) for candidate in candidates) / len(candidates),
    )


def plan(
    measured: Measured,
    fleet: Iterable[PoolMember],
    config: HandoverConfig,
    min_requests: int,
    link: LinkSpeed | None = None,
) -> FleetPlan:
    """Return the plan for what was measured. Fewer than `min_requests` prefills are too few for one.

    `link` is the learned speed of a link between two workers; None: that of the settings.
    """
    link = link or LinkSpeed(1.0 / config.transfer_tokens_per_s, config.latency_s)
    groups: dict[tuple[str, ...], list[PoolMember]] = {}
    for member in fleet:
        groups.setdefault(member.models, []).append(member)
    reported, seconds = _by_worker(measured.workers), max(1.0, measured.seconds)
    return FleetPlan(
        round(seconds, 1),
        measured.requests,
        config.connector,
        [_planned(group, reported, seconds, link, min_requests) for group in groups.values()],
        [evidence.inputs(measured), evidence.outputs(measured)],
    )


def _by_worker(candidates: Mapping[str, WorkerMeasured]) -> dict[str, list[WorkerMeasured]]:
    found: dict[str, list[WorkerMeasured]] = {}
    for name, one in candidates.items():
        found.setdefault(name.partition("#")[0], []).append(one)
    return found


def _planned(
    group: Sequence[PoolMember],
    reported: Mapping[str, list[WorkerMeasured]],
    seconds: float,
    link: LinkSpeed,
    min_requests: int,
) -> SplitPlan:
    ready = [one for one in group if one.ready]
    pools = [[one for one in ready if one.role == role] for role in ROLES]
    split, work = Split(*map(len, pools)), _work(group, reported)
    needs = _needs(work, split, min_requests)
    if needs is not None:
        shown = [_pool(role, pool, reported, seconds, None) for role, pool in zip(ROLES, pools, strict=True)]
        return SplitPlan(group[0].models, shown, RoleCounts(*split), needs=needs)
    load = _load(work, ready, split, seconds, link)
    found, least_s = best(load, split)
    priced = zip(ROLES, pools, prices(load, split), strict=True)
    return SplitPlan(
        group[0].models,
        [_pool(role, pool, reported, seconds, price_s) for role, pool, price_s in priced],
        RoleCounts(*split),
        RoleCounts(*found),
        delay_s(load, split),
        least_s,
        delay_s(load, _first_step(split, found)),
        _shown(load, work),
    )


def _first_step(now: Split, then: Split) -> Split:
    """Return the split after one worker has changed between prefill and decode."""
    step = (then.prefill > now.prefill) - (then.prefill < now.prefill)
    return now if then.mixed != now.mixed else Split(now.prefill + step, now.decode - step, now.mixed)


def _work(group: Iterable[PoolMember], reported: Mapping[str, list[WorkerMeasured]]) -> WorkMeasured:
    total = WorkMeasured()
    for member in group:
        for one in reported.get(member.id, ()):
            add_fields(total, one.work)
    return total


def _needs(work: WorkMeasured, split: Split, min_requests: int) -> str | None:
    if not split.decode + split.mixed:
        return "a ready worker that takes whole requests"
    if work.prefills < min_requests or not work.timed:
        return f"{min_requests} prefills at a learned speed; there were {work.timed} of {work.prefills}"
    if not work.seen_gaps:
        return "a streamed answer of two tokens or more"
    return None


def _load(work: WorkMeasured, ready: Sequence[PoolMember], split: Split, seconds: float, link: LinkSpeed) -> PhaseLoad:
    """Return the load such that the model gives the measured gaps and waits under the present split."""
    workers, tokens = len(ready), work.prompt_tokens / work.prefills
    load = PhaseLoad(
        prefills_per_s=work.prefills / seconds,
        prefill_s=work.prefill_s / work.timed,
        prefill_square_s2=work.prefill_square_s2 / work.timed,
        moved_s=link.latency_s + tokens * link.token_s,
        answers_per_s=work.answers / seconds,
        gaps=work.gaps / work.answers,
        gap_s=work.decode_s / work.seen_gaps,
        step_token_s=work.step_gaps_s / work.learned_gaps if work.learned_gaps else 0.0,
        context_tokens=work.context_gaps / work.gaps,
        kv_tokens=sum(one.kv_tokens for one in ready) / workers,
        ranks=sum(one.ranks for one in ready) / workers,
    )
    share = _handed_share(work)
    engines = (split.decode + split.mixed) * load.ranks
    busy = ((1.0 - share) * load.prefill_work + load.context_work) / engines
    idle_gap_s = load.gap_s / float(stretched(np.asarray(busy)))
    return replace(load, gap_s=idle_gap_s, burst=_burst(work, load, split, share))


def _burst(work: WorkMeasured, load: PhaseLoad, split: Split, share: float) -> float:
    if not work.waits:
        return 1.0
    measured_s = max(0.0, work.wait_s / work.waits) * load.prefills_per_s
    known_s = _WEIGHT * load.prefill_work
    ratio = (measured_s + known_s) / (wait_s(load, split, share) + known_s) if known_s else 1.0
    return min(max(ratio, _BURSTS[0]), _BURSTS[1])


def _handed_share(work: WorkMeasured) -> float:
    return work.handed_s / work.prefill_s if work.prefill_s else 0.0


def _shown(load: PhaseLoad, work: WorkMeasured) -> PlannedLoad:
    return PlannedLoad(
        prefills_per_s=load.prefills_per_s,
        prompt_tokens=work.prompt_tokens / work.prefills,
        prefill_s=load.prefill_s,
        handed_share=_handed_share(work),
        moved_s=load.moved_s,
        answers_per_s=load.answers_per_s,
        output_tokens=load.gaps + 1.0,
        gap_s=load.gap_s,
        step_token_s=load.step_token_s,
        context_tokens=load.context_tokens,
        kv_tokens=load.kv_tokens,
        burst=load.burst,
    )


def _pool(
    role: str,
    pool: Sequence[PoolMember],
    reported: Mapping[str, list[WorkerMeasured]],
    seconds: float,
    price_s: float | None,
) -> PlannedPool:
    seen = [one for member in pool for one in reported.get(member.id, ())]
    work, engines = _work(pool, reported), sum(one.ranks for one in pool)
    busy_s = work.prefill_s * work.prefills / work.timed if work.timed else 0.0
    reports = sum(one.reports for one in seen)
    return PlannedPool(
        role,
        len(pool),
        [one.id for one in pool],
        price_s,
        _ratio(sum(one.queue_wait_s for one in pool), len(pool)),
        _ratio(busy_s, engines * seconds),
        _ratio(sum(one.kv_usage for one in seen), reports),
        _ratio(sum(one.running for one in seen), reports),
        _ratio(work.decode_s, work.seen_gaps),
    )


def _ratio(sum_of: float, over: float) -> float | None:
    return sum_of / over if over else None
