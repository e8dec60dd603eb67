"""The callers of the admin port: who asks now, and who asked for which change."""

from __future__ import annotations

from router.admin.audit_log import AuditEntry
from router.admin.documents import Shape
from router.admin.http.paging import decode_cursor, encode_cursor, paged
from router.admin.operations import Answer, Call, read
from router.security.token import Role


class AuditPage(Shape):
    """The entries of one page, newest first. `next` is the `cursor` of the following page, or null."""

    entries: list[AuditEntry]
    next: str | None = None


class Whoami(Shape):
    """The caller: the name of its token, null if the port needs none, and its role."""

    name: str | None
    role: Role


@read("audit", AuditPage, query=paged(100, 1_000, "most entries to return; the latest 1,000 are kept"))
async def list_audit(call: Call) -> Answer:
    """Changes asked of this port: who, from where, and the outcome; newest first."""
    limit, cursor = call.query["limit"], call.query["cursor"]
    entries = call.port.audit.entries(None if cursor is None else decode_cursor(cursor, int))
    page = entries[:limit]
    return Answer(AuditPage(entries=page, next=encode_cursor(page[-1].number) if len(entries) > limit else None))


@read("whoami", Whoami)
async def whoami(call: Call) -> Answer:
    """The name and the role of the token that the request brings."""
    return Answer(Whoami(name=call.who, role=Role.ADMIN if call.role is None else call.role))
