"""The plan of the workers' roles."""

from __future__ import annotations

from http import HTTPStatus

from router.admin.operations import Answer, Call
from router.admin.problems import AdminError


async def show(call: Call) -> Answer:
    """Answer with the plan for the load of the last `handover.plan_window_s`."""
    plan = await call.system.role_plan()
    if plan is None:
        detail = "no process has measured the load yet; try again"
        raise AdminError(HTTPStatus.SERVICE_UNAVAILABLE, "no_process", detail, headers={"retry-after": "1"})
    return Answer(plan)
