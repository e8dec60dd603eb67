"""The KV cache is full while utilisation is modest: memory, and not time, limits the workers."""

from __future__ import annotations

from router.config.model import DiagnosisConfig
from router.diagnosis import evidence
from router.diagnosis.condition import Severity
from router.diagnosis.finding import Checked, Finding, Pressure, Unsure
from router.diagnosis.in_force import InForce
from router.diagnosis.measured import Measured, WorkerMeasured

_KV_USAGE = 0.9
"""Share of a worker's KV cache that running requests may hold, on average."""
_PREEMPTIONS_PER_MINUTE = 1.0
_EVICTED_SHARE = 0.3
"""Share of a session's earlier prompts that its worker may have evicted when the next turn comes."""
_UTILISATION = 0.7
"""Share of time spent on prefills below which a worker counts as modestly used."""


def check(measured: Measured, thresholds: DiagnosisConfig, in_force: InForce) -> Checked:
    """Find workers that lack KV memory, and spend little time on prefills."""
    known = {name: one for name, one in measured.workers.items() if one.reports >= 3 and one.requests}
    seen = sum(one.requests for one in known.values())
    if seen < thresholds.min_requests:
        return Unsure(Pressure.KV_CAPACITY, f"{thresholds.min_requests} requests at workers that report their load")
    short = [name for name, one in known.items() if _starved(one, measured.seconds)]
    if not short:
        return None
    return Finding(
        Pressure.KV_CAPACITY,
        Severity.ADVICE,
        "The KV cache is full, while the workers have time to spare.",
        f"{len(short)} of {len(known)} workers hold more than {_KV_USAGE:.0%} of their KV cache for running requests, "
        f"preempt more than {_PREEMPTIONS_PER_MINUTE:g} a minute, or had evicted more than {_EVICTED_SHARE:.0%} of a "
        f"session when its next turn came; and they spend less than {_UTILISATION:.0%} of their time on prefills: "
        f"{', '.join(short[: evidence.MOST_ROWS])}.",
        [evidence.caches(measured), evidence.turns(measured)],
        to_try(in_force),
        which=short[: evidence.MOST_ROWS],
    )


def starved(measured: Measured, thresholds: DiagnosisConfig) -> bool:
    """Return whether a worker lacks KV memory and not time."""
    return isinstance(check(measured, thresholds, InForce()), Finding)


def _starved(worker: WorkerMeasured, seconds: float) -> bool:
    modest = worker.utilisation < _UTILISATION * worker.requests
    full = worker.kv_usage > _KV_USAGE * worker.reports
    preempts = worker.preemptions > _PREEMPTIONS_PER_MINUTE * max(1.0, seconds / 60.0)
    evicts = worker.requests >= 20 and worker.evicted_tokens > _EVICTED_SHARE * worker.earlier_tokens
    return modest and (full or preempts or evicts)


def to_try(in_force: InForce) -> list[str]:
    """Return what may help and is not in force."""
    remedies = [
        (True, "give vLLM more KV memory: --gpu-memory-utilization, or a smaller model or quantised weights"),
        (not in_force.fp8_caches, "store the KV cache in fp8: --kv-cache-dtype fp8"),
        (not in_force.kv_tiers, "add an offloading tier for KV blocks, in CPU memory or a shared store"),
        (True, "add workers"),
    ]
    return [remedy for helps, remedy in remedies if helps]
