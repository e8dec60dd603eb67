"""A stream starts fast, then stutters: the worker's decode steps take long, whatever is prefilled beside them."""

from __future__ import annotations

from backends.vllm.histogram_bounds import ITL_S
from router.config.model import DiagnosisConfig
from router.diagnosis import evidence
from router.diagnosis.condition import Severity
from router.diagnosis.finding import Checked, Finding, Pressure, Unsure
from router.diagnosis.histogram import quantile
from router.diagnosis.in_force import InForce
from router.diagnosis.measured import Measured


def check(measured: Measured, thresholds: DiagnosisConfig, in_force: InForce) -> Checked:
    """Find workers with long gaps between tokens while no long prompt is prefilled there."""
    known = {name: one for name, one in measured.workers.items() if sum(one.alone) >= thresholds.min_requests}
    if not known:
        return Unsure(Pressure.DECODE_SCHEDULING, f"{thresholds.min_requests} sampled gaps between tokens of a worker")
    slow = {name: gap for name, one in known.items() if (gap := quantile(one.alone, ITL_S, 0.95) or 0.0)}
    slow = {name: gap for name, gap in slow.items() if gap > thresholds.gap_s}
    if not slow:
        return None
    worst = max(slow, key=lambda name: slow[name])
    return Finding(
        Pressure.DECODE_SCHEDULING,
        Severity.ADVICE,
        "Streams stutter: the steps that make their tokens take long.",
        f"On {len(slow)} of {len(known)} workers, 5 % of the gaps between tokens are longer than gap_s "
        f"({thresholds.gap_s:g} s) while no long prompt is prefilled there; on {worst} they are longer than "
        f"{slow[worst]:.3g} s.",
        [evidence.gaps(measured), evidence.outputs(measured)],
        to_try(in_force),
        which=sorted(slow, key=lambda name: -slow[name])[: evidence.MOST_ROWS],
    )


def to_try(in_force: InForce) -> list[str]:
    """Return what may help and is not in force."""
    limit = in_force.max_requests_per_worker
    fewer = f"lower limits.max_requests_per_worker (now {limit})" if limit else "set limits.max_requests_per_worker"
    remedies = [
        (True, f"send fewer streams to each worker: {fewer}, or add workers"),
        (True, "lower vLLM's --max-num-batched-tokens, so that the prefills in a decode step are smaller"),
        (not in_force.lanes, "use the policy's lanes (policy.lanes: true), which keep prefills away from streams"),
        (True, "lower vLLM's --max-num-seqs"),
    ]
    return [remedy for helps, remedy in remedies if helps]
