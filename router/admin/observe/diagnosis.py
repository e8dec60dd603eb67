"""What hurts, from the gateway's own measurements and metrics."""

from __future__ import annotations

from router.admin.http.problems import no_process
from router.admin.operations import Answer, Call, read
from router.diagnosis.diagnose import Diagnosis


@read("diagnosis", Diagnosis)
async def diagnose(call: Call) -> Answer:
    """What hurts, and what to try: findings with evidence, from the gateway's own measurements."""
    found = await call.system.diagnosis()
    if found is None:
        raise no_process()
    return Answer(found)
