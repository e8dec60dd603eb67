"""A plan of a fleet's roles: what one more worker of each would save, and the split that costs least.

The load is that of a period. The arithmetic is in `router.diagnosis.split`, one plan for each set of workers
that serve the same models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from router.diagnosis.measured import Measured, WorkerMeasured, WorkMeasured, add_fields
from router.diagnosis.split import PhaseLoad, Split, best, delay_s, prices, stretched, wait_s
from router.placement.fleet.endpoints import DECODE, MIXED, PREFILL, FleetEndpoint
from router.placement.fleet.health import SERVING
from router.placement.fleet.roles import counts_as
from router.placement.handover.links import LinkSpeed

ROLES = (PREFILL, DECODE, MIXED)
_BURSTS = (0.25, 4.0)
"""Bounds of `PhaseLoad.burst`."""
_WEIGHT = 0.25
"""Seconds of wait per second of prefill that count as measured at the model's estimate. Without them, the noise of an
idle fleet would look like bursts."""


class PoolMember(msgspec.Struct, frozen=True):
    """One worker, as the plan sees it now. `role` is the one that it counts as (`handover_roles.counts_as`).
    `kv_tokens` is the size of its KV cache, 0 if unknown."""

    id: str
    role: str
    models: tuple[str, ...]
    ready: bool
    ranks: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class PlannedPool:
    """The workers that count as one role, of which `ready` are ready, and what was measured of them. With a connector,
    a worker that may be either end of a KV handover counts as a decode worker, and a decode worker without the
    connector as a mixed one. A prefill worker without it gets no requests, and does not count.

    `price_s` is what one more of them would save: seconds of delay per second. It is None while too little is known.
    Of the period: `utilisation` is the share of time for prefills, `kv_occupancy` and `running` are means of the
    workers' reports, and `gap_s` is the mean time between two tokens.
    """

    role: str
    ready: int
    price_s: float | None
    utilisation: float | None
    kv_occupancy: float | None
    running: float | None
    gap_s: float | None


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The plan for the workers that serve `models`.

    `delay_s` is the added delay under the split `now`, in seconds per second, and `recommended_delay_s` under
    `recommended`. All are None while too little is known: `needs` says what.
    """

    models: tuple[str, ...]
    pools: list[PlannedPool]
    now: Split
    recommended: Split | None = None
    delay_s: float | None = None
    recommended_delay_s: float | None = None
    load: PhaseLoad | None = None
    needs: str | None = None


def members(endpoints: Iterable[FleetEndpoint], connector: str | None) -> list[PoolMember]:
    """Return the workers that may get requests and whose models are known."""
    known = (endpoint for endpoint in endpoints if endpoint.models_known and endpoint.candidates)
    roles = ((endpoint, counts_as(endpoint.role, endpoint.labels, connector)) for endpoint in known)
    return [_member(endpoint, role) for endpoint, role in roles if role is not None]


def _member(endpoint: FleetEndpoint, role: str) -> PoolMember:
    assert endpoint.facts is not None
    candidates = endpoint.candidates
    return PoolMember(
        endpoint.id,
        role,
        tuple(sorted(card.id for card in endpoint.facts.models if card.parent is None)),
        endpoint.state in SERVING,
        len(candidates),
        sum(candidate.capacity_tokens for candidate in candidates),
    )


def plans(measured: Measured, fleet: Iterable[PoolMember], min_requests: int, link: LinkSpeed) -> list[SplitPlan]:
    """Return the plans for what was measured, one for each set of workers that serve the same models.

    Fewer than `min_requests` prefills are too few for one. `link` is the speed of a link between two workers.
    """
    groups: dict[tuple[str, ...], list[PoolMember]] = {}
    for member in fleet:
        groups.setdefault(member.models, []).append(member)
    reported, seconds = _by_worker(measured.workers), max(1.0, measured.seconds)
    return [_planned(group, reported, seconds, link, min_requests) for group in groups.values()]


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
        return SplitPlan(group[0].models, shown, split, needs=needs)
    load = _load(work, ready, split, seconds, link)
    found, least_s = best(load, split)
    priced = zip(ROLES, pools, prices(load, split), strict=True)
    return SplitPlan(
        group[0].models,
        [_pool(role, pool, reported, seconds, price_s) for role, pool, price_s in priced],
        split,
        found,
        delay_s(load, split),
        least_s,
        load,
    )


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
        price_s,
        _ratio(busy_s, engines * seconds),
        _ratio(sum(one.kv_usage for one in seen), reports),
        _ratio(sum(one.running for one in seen), reports),
        _ratio(work.decode_s, work.seen_gaps),
    )


def _ratio(sum_of: float, over: float) -> float | None:
    return sum_of / over if over else None
