"""Another split of the workers into prefill and decode workers would cost less."""

from __future__ import annotations

from router.config.model import DiagnosisConfig
from router.diagnosis.condition import Severity
from router.diagnosis.finding import Checked, Evidence, Finding, Pressure, Unsure, table
from router.diagnosis.in_force import InForce
from router.diagnosis.measured import Measured
from router.diagnosis.split_plan import ROLES, SplitPlan, plans
from router.placement.handover.links import LinkSpeed

_MARGIN = 0.1
"""Share of the added delay that another split must save: the model is off by some percent."""
_LEAST_GAIN_S = 0.01
"""Seconds of delay per second that it must save in any case. A share of nothing is nothing."""
_HEADS = ["role", "ready", "recommended", "one more saves, s/s", "prefill share", "KV share", "streams", "gap s"]


def check(measured: Measured, thresholds: DiagnosisConfig, in_force: InForce) -> Checked:
    """Compare the present split with the cheapest one, where workers hand KV cache over."""
    if in_force.link is None or not in_force.pool:
        return None
    found = plans(measured, in_force.pool, thresholds.min_requests, LinkSpeed(*in_force.link))
    better = [one for one in found if _gain_s(one) > 0.0]
    if better:
        return Finding(
            Pressure.WORKER_ROLES,
            Severity.ADVICE,
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
