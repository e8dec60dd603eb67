"""Small chats suffer during uploads: long prefills stretch the decode steps of the streams beside them."""

from __future__ import annotations

from backends.vllm.histogram_bounds import ITL_S
from router.config.model import DiagnosisConfig
from router.diagnosis.condition import Severity
from router.diagnosis.finding import Checked, Finding, Pressure, Unsure, table
from router.diagnosis.histogram import quantile, total
from router.diagnosis.in_force import InForce
from router.diagnosis.measured import Measured

_GAP_RATIO = 4.0
"""How much longer the 99th percentile of the gaps may be while a long prompt is prefilled on the same worker."""


def check(measured: Measured, thresholds: DiagnosisConfig, in_force: InForce) -> Checked:
    """Compare the gaps beside a long prefill with the gaps without one, over all workers."""
    workers = measured.workers.values()
    alone, beside = total((one.alone for one in workers), ITL_S), total((one.beside for one in workers), ITL_S)
    if min(sum(alone), sum(beside)) < thresholds.min_requests:
        needs = f"{thresholds.min_requests} sampled gaps with and without a prompt of long_prompt_tokens in prefill"
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
        Severity.ADVICE,
        "Streams stall while a long prompt is prefilled on their worker.",
        f"The 99th percentile of the gaps between tokens is {with_long:.3g} s beside a prompt of at least "
        f"{thresholds.long_prompt_tokens:,} tokens, and {without:.3g} s without one: more than "
        f"{_GAP_RATIO:g} times as long.",
        [table("Gaps between tokens, sampled", ["streams", "gaps", "p50 s", "p95 s", "p99 s"], rows)],
        to_try(in_force),
    )


def to_try(in_force: InForce) -> list[str]:
    """Return what may help and is not in force."""
    remedies = [
        (
            not in_force.lanes,
            "use the policy's lanes (policy.lanes: true), which keep long prompts off the workers that stream",
        ),
        (not in_force.connector, "hand prompts over: prefill them on workers of their own (handover.connector)"),
        (in_force.connector, "give more workers the role prefill"),
        (True, "lower vLLM's --max-num-batched-tokens, so that a step takes a smaller part of a long prompt"),
        (in_force.lanes and not in_force.connector, "add workers: the lanes are on, and need a worker to keep free"),
    ]
    return [remedy for helps, remedy in remedies if helps]
