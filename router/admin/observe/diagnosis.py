"""What hurts, from the gateway's own measurements and metrics."""

from __future__ import annotations

import msgspec

from router.admin.http.problems import no_process
from router.admin.operations import Answer, Call, read
from router.admin.system import AdminView
from router.diagnosis.diagnose import Diagnosis
from router.diagnosis.diagnoser import Inputs
from router.diagnosis.facts import Facts
from router.diagnosis.in_force import in_force
from router.diagnosis.measured import Measured
from router.telemetry.snapshot import Snapshot


@read("diagnosis", Diagnosis)
async def diagnose(call: Call) -> Answer:
    """What hurts, and what to try: findings with evidence, from the gateway's own measurements."""
    found = await call.system.diagnosis()
    if found is None:
        raise no_process()
    return Answer(found)


def inputs_of(system: AdminView, metrics: Snapshot, measured: Measured, facts: Facts) -> Inputs:
    """Return what the diagnosis of all processes is made from."""
    known = msgspec.structs.replace(facts, reasons={**facts.reasons, **_reasons(system)})
    policy = system.control.state.settings.policy
    others = {} if system.replica is None else system.replica.findings_elsewhere()
    return Inputs(metrics, measured, known, in_force(system.config, policy, known), system.config.diagnosis, others)


def _reasons(system: AdminView) -> dict[str, str]:
    reasons = {} if system.control.unsaved is None else {"state": system.control.unsaved}
    if system.replica is not None:
        said = {"redis": system.replica.line.problem, "replicas": "; ".join(system.replica.apart())}
        reasons |= {about: why for about, why in said.items() if why}
    for name, state in {} if system.discovery is None else system.discovery.statistics().items():
        if state["failing_since"] is not None:
            reasons[f"source {name}"] = str(state["error"])
    return reasons
