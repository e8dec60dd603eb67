"""The log level of the running gateway."""

from __future__ import annotations

from http import HTTPStatus
from typing import Literal

from router.admin.documents import Body
from router.admin.http.problems import AdminError
from router.admin.operations import Answer, Call, operation, read
from router.security.token import Role
from router.telemetry.logs import log_level


class LogLevel(Body):
    """The lowest level that is logged, in all processes of the gateway and until it ends."""

    level: Literal["debug", "info", "warning", "error"]


@read("log-level", LogLevel)
async def get_log_level(_: Call) -> Answer:
    """The lowest level that is logged."""
    return Answer(LogLevel(level=log_level()))


@operation(
    "PUT",
    "/admin/v1/log-level",
    role=Role.OPERATE,
    takes=LogLevel,
    gives=LogLevel,
    problems={503: "a process did not answer and keeps its level"},
)
async def set_log_level(call: Call) -> Answer:
    """Log from another level on, in all processes and until the gateway ends."""
    silent = await call.system.log_from(call.body.level)
    if silent:
        detail = f"process {', '.join(map(str, silent))} did not answer and keeps its level; ask again"
        raise AdminError(HTTPStatus.SERVICE_UNAVAILABLE, "no_process", detail, headers={"retry-after": "1"})
    return Answer(LogLevel(level=log_level()))
