"""The checks of the traffic, one for each pressure point. A `*_remedies` returns what may help and is not in force."""

from __future__ import annotations

from backends.vllm.histogram_bounds import ITL_S, TTFT_S
from router.config.model import DiagnosisConfig
from router.diagnosis import evidence
from router.diagnosis.condition import Severity
from router.diagnosis.finding import Checked, Evidence, Finding, Pressure, Unsure, table
from router.diagnosis.in_force import InForce
from router.diagnosis.measured import (
    LONG_PROMPT_TOKENS,
    MIN_REQUESTS,
    Measured,
    Moved,
    PromptsMeasured,
    WorkerMeasured,
)
from router.diagnosis.split_plan import ROLES, SplitPlan, plans
from router.placement.handover.links import LinkSpeed
from router.telemetry.histogram import PROMPT_TOKENS, named_buckets, quantile, total

ADVICE = Severity.ADVICE
_WAIT_SHARE = 0.5
"""Share of the time to first token that requests may wait before their own prefill."""
_KV_USAGE = 0.9
"""Share of a worker's KV cache that running requests may hold, on average."""
_PREEMPTIONS_PER_MINUTE = 1.0
_EVICTED_SHARE = 0.3
"""Share of a session's earlier prompts that its worker may have evicted when the next turn comes."""
_UTILISATION = 0.7
"""Share of time spent on prefills below which a worker counts as modestly used."""
_GAP_RATIO = 4.0
"""How much longer the 99th percentile of the gaps may be while a long prompt is prefilled on the same worker."""
_REUSE_SHARE = 0.7
"""Share of a session's earlier prompts that the next turn should find cached."""
_CHANGED_SHARE = 0.2
"""Share of further turns that may go to another worker than the turn before."""
_MARGIN = 0.1
"""Share of the added delay that another split must save: the model is off by some percent."""
_LEAST_GAIN_S = 0.01
"""Seconds of delay per second that it must save in any case. A share of nothing is nothing."""
_HEADS = ["role", "ready", "recommended", "one more saves, s/s", "prefill share", "KV share", "streams", "gap s"]


def _helping(*remedies: tuple[bool, str]) -> list[str]:
    return [remedy for helps, remedy in remedies if helps]


def prefill_queueing(measured: Measured, thresholds: DiagnosisConfig, in_force: InForce) -> Checked:
    """Find prompt lengths whose time to first token is long, and mostly a wait. A wait for KV memory is not meant."""
    seen = sum(sum(one.ttft) for one in measured.prompts)
    if seen < MIN_REQUESTS:
        return Unsure(Pressure.PREFILL_QUEUEING, f"{MIN_REQUESTS} streams; there were {seen}")
    slow = [
        name
        for name, one in zip(named_buckets(PROMPT_TOKENS), measured.prompts, strict=True)
        if _waits(one, thresholds, seen)
    ]
    if not slow or isinstance(kv_capacity(measured, thresholds, in_force), Finding):
        return None
    wait_s = sum(one.wait_s for one in measured.prompts) / seen
    return Finding(
        Pressure.PREFILL_QUEUEING,
        ADVICE,
        "Requests wait for the prefills of others before their first token.",
        f"Of prompts of {' and '.join(slow)} tokens, 5 % take longer than ttft_s ({thresholds.ttft_s:g} s), and more "
        f"than {_WAIT_SHARE:.0%} of their time to first token is a wait. Over all streams the "
        f"wait is {wait_s:.3g} s on average.",
        [evidence.first_tokens(measured), evidence.inputs(measured)],
        prefill_queueing_remedies(in_force),
    )


def _waits(prompts: PromptsMeasured, thresholds: DiagnosisConfig, seen: int) -> bool:
    """Return whether these prompts are slow for a wait. A length with few requests of many says nothing."""
    number = sum(prompts.ttft)
    if number < max(5, 0.01 * seen):
        return False
    late = (quantile(prompts.ttft, TTFT_S, 0.95) or 0.0) > thresholds.ttft_s
    return late and prompts.wait_s > _WAIT_SHARE * prompts.ttft_s


def prefill_queueing_remedies(in_force: InForce) -> list[str]:
    off = [name for name, on in (("lanes", in_force.lanes), ("hold", in_force.hold)) if not on]
    settings = ", ".join(f"policy.{name}: true" for name in off)
    return _helping(
        (True, "add prefill capacity: more workers, or workers that only prefill"),
        (True, "raise vLLM's --max-num-batched-tokens, so that a prefill takes fewer steps"),
        (
            bool(off),
            f"use the policy's {' and '.join(off)} ({settings}), which keep long prompts apart from short ones",
        ),
        (True, "send fewer long prompts at a time (limits, or the routes' queues)"),
    )


def decode_scheduling(measured: Measured, thresholds: DiagnosisConfig, in_force: InForce) -> Checked:
    """Find workers with long gaps between tokens while no long prompt is prefilled there."""
    known = {name: one for name, one in measured.workers.items() if sum(one.alone) >= MIN_REQUESTS}
    if not known:
        return Unsure(Pressure.DECODE_SCHEDULING, f"{MIN_REQUESTS} sampled gaps between tokens of a worker")
    slow = {name: gap for name, one in known.items() if (gap := quantile(one.alone, ITL_S, 0.95) or 0.0)}
    slow = {name: gap for name, gap in slow.items() if gap > thresholds.gap_s}
    if not slow:
        return None
    worst = max(slow, key=lambda name: slow[name])
    return Finding(
        Pressure.DECODE_SCHEDULING,
        ADVICE,
        "Streams stutter: the steps that make their tokens take long.",
        f"On {len(slow)} of {len(known)} workers, 5 % of the gaps between tokens are longer than gap_s "
        f"({thresholds.gap_s:g} s) while no long prompt is prefilled there; on {worst} they are longer than "
        f"{slow[worst]:.3g} s.",
        [evidence.gaps(measured), evidence.outputs(measured)],
        decode_scheduling_remedies(in_force),
        which=sorted(slow, key=lambda name: -slow[name])[: evidence.MOST_ROWS],
    )


def decode_scheduling_remedies(in_force: InForce) -> list[str]:
    limit = in_force.max_requests_per_worker
    fewer = f"lower limits.max_requests_per_worker (now {limit})" if limit else "set limits.max_requests_per_worker"
    return _helping(
        (True, f"send fewer streams to each worker: {fewer}, or add workers"),
        (True, "lower vLLM's --max-num-batched-tokens, so that the prefills in a decode step are smaller"),
        (not in_force.lanes, "use the policy's lanes (policy.lanes: true), which keep prefills away from streams"),
        (True, "lower vLLM's --max-num-seqs"),
    )


def kv_capacity(measured: Measured, thresholds: DiagnosisConfig, in_force: InForce) -> Checked:
    """Find workers that lack KV memory, and spend little time on prefills."""
    known = {name: one for name, one in measured.workers.items() if one.reports >= 3 and one.requests}
    seen = sum(one.requests for one in known.values())
    if seen < MIN_REQUESTS:
        return Unsure(Pressure.KV_CAPACITY, f"{MIN_REQUESTS} requests at workers that report their load")
    short = [name for name, one in known.items() if _starved(one, measured.seconds)]
    if not short:
        return None
    return Finding(
        Pressure.KV_CAPACITY,
        ADVICE,
        "The KV cache is full, while the workers have time to spare.",
        f"{len(short)} of {len(known)} workers hold more than {_KV_USAGE:.0%} of their KV cache for running requests, "
        f"preempt more than {_PREEMPTIONS_PER_MINUTE:g} a minute, or had evicted more than {_EVICTED_SHARE:.0%} of a "
        f"session when its next turn came; and they spend less than {_UTILISATION:.0%} of their time on prefills: "
        f"{', '.join(short[: evidence.MOST_ROWS])}.",
        [evidence.caches(measured), evidence.turns(measured)],
        kv_capacity_remedies(in_force),
        which=short[: evidence.MOST_ROWS],
    )


def _starved(worker: WorkerMeasured, seconds: float) -> bool:
    modest = worker.utilisation < _UTILISATION * worker.requests
    full = worker.kv_usage > _KV_USAGE * worker.reports
    preempts = worker.preemptions > _PREEMPTIONS_PER_MINUTE * max(1.0, seconds / 60.0)
    evicts = worker.requests >= 20 and worker.evicted_tokens > _EVICTED_SHARE * worker.earlier_tokens
    return modest and (full or preempts or evicts)


def kv_capacity_remedies(in_force: InForce) -> list[str]:
    return _helping(
        (True, "give vLLM more KV memory: --gpu-memory-utilization, or a smaller model or quantised weights"),
        (not in_force.fp8_caches, "store the KV cache in fp8: --kv-cache-dtype fp8"),
        (not in_force.kv_tiers, "add an offloading tier for KV blocks, in CPU memory or a shared store"),
        (True, "add workers"),
    )


def phase_interference(measured: Measured, thresholds: DiagnosisConfig, in_force: InForce) -> Checked:
    """Compare the gaps beside a long prefill with the gaps without one, over all workers."""
    workers = measured.workers.values()
    alone, beside = total((one.alone for one in workers), ITL_S), total((one.beside for one in workers), ITL_S)
    if min(sum(alone), sum(beside)) < MIN_REQUESTS:
        needs = f"{MIN_REQUESTS} sampled gaps with and without a long prompt in prefill"
        return Unsure(Pressure.PHASE_INTERFERENCE, f"{needs}; there were {sum(beside)} and {sum(alone)}")
    without, with_long = quantile(alone, ITL_S, 0.99) or 0.0, quantile(beside, ITL_S, 0.99) or 0.0
    if with_long <= _GAP_RATIO * without or with_long <= thresholds.gap_s:
        return None
    rows = [
        [name, sum(counts), *(quantile(counts, ITL_S, share) for share in (0.5, 0.95, 0.99))]
        for name, counts in (("without a long prefill", alone), ("beside a long prefill", beside))
    ]
    return Finding(
        Pressure.PHASE_INTERFERENCE,
        ADVICE,
        "Streams stall while a long prompt is prefilled on their worker.",
        f"The 99th percentile of the gaps between tokens is {with_long:.3g} s beside a prompt of at least "
        f"{LONG_PROMPT_TOKENS:,} tokens, and {without:.3g} s without one: more than "
        f"{_GAP_RATIO:g} times as long.",
        [table("Gaps between tokens, sampled", ["streams", "gaps", "p50 s", "p95 s", "p99 s"], rows)],
        phase_interference_remedies(in_force),
    )


def phase_interference_remedies(in_force: InForce) -> list[str]:
    return _helping(
        (
            not in_force.lanes,
            "use the policy's lanes (policy.lanes: true), which keep long prompts off the workers that stream",
        ),
        (not in_force.connector, "hand prompts over: prefill them on workers of their own (handover.connector)"),
        (in_force.connector, "give more workers the role prefill"),
        (True, "lower vLLM's --max-num-batched-tokens, so that a step takes a smaller part of a long prompt"),
        (in_force.lanes and not in_force.connector, "add workers: the lanes are on, and need a worker to keep free"),
    )


def prefix_reuse(measured: Measured, thresholds: DiagnosisConfig, in_force: InForce) -> Checked:
    """Find sessions that change workers and lose their cached prompts by it.

    A turn that moves because its worker had evicted the session, or is gone, loses nothing by the move.
    """
    further = measured.stayed + sum(measured.moved.values())
    moved = sum(measured.moved.get(why, 0) for why in (Moved.COST, Moved.NOT_KNOWN))
    if further < MIN_REQUESTS:
        needs = f"{MIN_REQUESTS} further turns of sessions; there were {further}"
        return Unsure(Pressure.PREFIX_REUSE, needs)
    earlier = sum(one.earlier_tokens for one in measured.turns)
    reused = sum(one.reused_tokens for one in measured.turns)
    if not earlier or reused >= _REUSE_SHARE * earlier or moved <= _CHANGED_SHARE * further:
        return None
    return Finding(
        Pressure.PREFIX_REUSE,
        ADVICE,
        "Sessions lose their cached prompts from turn to turn, because they change workers.",
        f"Further turns find {reused / earlier:.0%} of the earlier prompts cached, less than {_REUSE_SHARE:.0%}, and "
        f"{moved / further:.0%} of them leave a worker that had, or may have had, more of them cached: more than "
        f"{_CHANGED_SHARE:.0%}.",
        [evidence.turns(measured), evidence.moves(measured)],
        prefix_reuse_remedies(in_force),
    )


def prefix_reuse_remedies(in_force: InForce) -> list[str]:
    return _helping(
        (
            not in_force.kv_events,
            "let the gateway subscribe to KV events (residency.kv_events: true), so that it knows what is cached",
        ),
        (
            not in_force.publishing,
            "switch on KV events (vLLM's --kv-events-config), so that the gateway knows what each worker has cached",
        ),
        (
            not in_force.counts_cached,
            f"use a policy that counts cached tokens, such as marginal_cost, in place of {in_force.rule}",
        ),
        (True, "let clients send a session id, and send the earlier turns unchanged at the start of the prompt"),
        (
            not (in_force.publishing or in_force.shared),
            "let gateways of the same workers share what they know (redis.url): each knows only its own requests",
        ),
    )


def worker_roles(measured: Measured, thresholds: DiagnosisConfig, in_force: InForce) -> Checked:
    """Compare the present split with the cheapest one, where workers hand KV cache over."""
    if in_force.link is None or not in_force.pool:
        return None
    found = plans(measured, in_force.pool, MIN_REQUESTS, LinkSpeed(*in_force.link))
    better = [one for one in found if _gain_s(one) > 0.0]
    if better:
        return Finding(
            Pressure.WORKER_ROLES,
            ADVICE,
            "Another split into prefill and decode workers would cost less.",
            " ".join(map(_detail, better)),
            [_table(one) for one in better],
            ["change one worker at a time: `warmroute workers drain`, `set ... role=...` and `undrain`"],
        )
    unsure = next((one.needs for one in found if one.needs is not None), None)
    return None if unsure is None else Unsure(Pressure.WORKER_ROLES, unsure)


def _gain_s(plan: SplitPlan) -> float:
    """Return the seconds of delay per second that the recommended split saves; 0 if that is too little."""
    if plan.delay_s is None or plan.recommended_delay_s is None:
        return 0.0
    gain_s = plan.delay_s - plan.recommended_delay_s
    return gain_s if gain_s >= max(_MARGIN * plan.delay_s, _LEAST_GAIN_S) else 0.0


def _detail(plan: SplitPlan) -> str:
    assert plan.recommended is not None
    wanted = ", ".join(f"{number} {role}" for role, number in zip(ROLES, plan.recommended, strict=True))
    return (
        f"Workers of {', '.join(plan.models)}: the added delay is {plan.delay_s:.3g} s per second, and would be "
        f"{plan.recommended_delay_s:.3g} with {wanted}."
    )


def _table(plan: SplitPlan) -> Evidence:
    assert plan.recommended is not None
    rows = [
        [one.role, one.ready, wanted, one.price_s, one.utilisation, one.kv_occupancy, one.running, one.gap_s]
        for one, wanted in zip(plan.pools, plan.recommended, strict=True)
    ]
    return table(f"Roles of workers of {', '.join(plan.models)}", _HEADS, rows)
