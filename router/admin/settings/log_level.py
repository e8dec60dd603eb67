"""Show and change the log level of the running gateway."""

from __future__ import annotations

from router.admin.documents import LogLevel
from router.admin.operations import Answer, Call
from router.telemetry.logs import log_level, set_log_level


async def show(_: Call) -> Answer:
    return Answer(LogLevel(level=log_level()))


async def change(call: Call) -> Answer:
    """Use another level in this process, until it ends."""
    wanted: LogLevel = call.body
    set_log_level(wanted.level)
    return Answer(LogLevel(level=log_level()))
