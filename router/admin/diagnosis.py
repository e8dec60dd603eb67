"""What hurts, from the gateway's own measurements."""

from __future__ import annotations

from router.admin.operations import Answer, Call


async def show(call: Call) -> Answer:
    """Answer with the diagnosis of the last `diagnosis.window_s`."""
    return Answer(call.system.diagnosis())
