"""A stream starts fast, then stutters: the worker's decode steps take long, whatever is prefilled beside them."""

from __future__ import annotations

from backends.vllm.histogram_bounds import ITL_S
from router.config.model import DiagnosisConfig
from router.diagnosis import evidence
from router.diagnosis.finding import Checked, Finding, Pressure, Unsure
from router.diagnosis.histogram import quantile
from router.diagnosis.measured import Measured

TO_TRY = [
    "send fewer streams to each worker: limits.max_requests_per_worker, or more workers",
    "lower vLLM's --max-num-batched-tokens, so that the prefills in a decode step are smaller",
    "use the policy's lanes, which keep prefills away from streams",
    "lower vLLM's --max-num-seqs",
]


def check(measured: Measured, thresholds: DiagnosisConfig) -> Checked:
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
        "Streams stutter: the steps that make their tokens take long.",
        f"On {len(slow)} of {len(known)} workers, 5 % of the gaps between tokens are longer than gap_s "
        f"({thresholds.gap_s:g} s) while no long prompt is prefilled there; on {worst} they are longer than "
        f"{slow[worst]:.3g} s.",
        [evidence.gaps(measured), evidence.outputs(measured)],
        TO_TRY,
    )
