"""Time to first token jumps on long prompts: requests wait for the prefills before their own."""

from __future__ import annotations

from backends.vllm.histogram_bounds import TTFT_S
from router.config.model import DiagnosisConfig
from router.diagnosis import evidence
from router.diagnosis.condition import Severity
from router.diagnosis.finding import Checked, Finding, Pressure, Unsure
from router.diagnosis.findings import kv_capacity
from router.diagnosis.histogram import PROMPT_TOKENS, named_buckets, quantile
from router.diagnosis.in_force import InForce
from router.diagnosis.measured import Measured, PromptsMeasured

_WAIT_SHARE = 0.5
"""Share of the time to first token that requests may wait before their own prefill."""


def check(measured: Measured, thresholds: DiagnosisConfig, in_force: InForce) -> Checked:
    """Find prompt lengths whose time to first token is long, and mostly a wait. A wait for KV memory is not meant."""
    seen = sum(sum(one.ttft) for one in measured.prompts)
    if seen < thresholds.min_requests:
        return Unsure(Pressure.PREFILL_QUEUEING, f"{thresholds.min_requests} streams; there were {seen}")
    slow = [
        name
        for name, one in zip(named_buckets(PROMPT_TOKENS), measured.prompts, strict=True)
        if _waits(one, thresholds, seen)
    ]
    if not slow or kv_capacity.starved(measured, thresholds):
        return None
    wait_s = sum(one.wait_s for one in measured.prompts) / seen
    return Finding(
        Pressure.PREFILL_QUEUEING,
        Severity.ADVICE,
        "Requests wait for the prefills of others before their first token.",
        f"Of prompts of {' and '.join(slow)} tokens, 5 % take longer than ttft_s ({thresholds.ttft_s:g} s), and more "
        f"than {_WAIT_SHARE:.0%} of their time to first token is a wait. Over all streams the "
        f"wait is {wait_s:.3g} s on average.",
        [evidence.first_tokens(measured), evidence.inputs(measured)],
        to_try(in_force),
    )


def _waits(prompts: PromptsMeasured, thresholds: DiagnosisConfig, seen: int) -> bool:
    """Return whether these prompts are slow for a wait. A length with few requests of many says nothing."""
    number = sum(prompts.ttft)
    if number < max(5, 0.01 * seen):
        return False
    late = (quantile(prompts.ttft, TTFT_S, 0.95) or 0.0) > thresholds.ttft_s
    return late and prompts.wait_s > _WAIT_SHARE * prompts.ttft_s


def to_try(in_force: InForce) -> list[str]:
    """Return what may help and is not in force."""
    off = [name for name, on in (("lanes", in_force.lanes), ("hold", in_force.hold)) if not on]
    settings = ", ".join(f"policy.{name}: true" for name in off)
    remedies = [
        (True, "add prefill capacity: more workers, or workers that only prefill"),
        (True, "raise vLLM's --max-num-batched-tokens, so that a prefill takes fewer steps"),
        (
            bool(off),
            f"use the policy's {' and '.join(off)} ({settings}), which keep long prompts apart from short ones",
        ),
        (True, "send fewer long prompts at a time (limits, or the routes' queues)"),
    ]
    return [remedy for helps, remedy in remedies if helps]
