"""The caller of the admin port, as the port knows it."""

from __future__ import annotations

from router.admin.documents import Whoami
from router.admin.operations import Answer, Call
from router.security.token import Role


async def show(call: Call) -> Answer:
    """Answer with the name and the role of the caller's token. Without tokens everyone has the role admin."""
    return Answer(Whoami(name=call.who, role=Role.ADMIN if call.role is None else call.role))
