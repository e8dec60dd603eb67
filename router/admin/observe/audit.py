"""List the audit."""

from __future__ import annotations

from router.admin.documents import AuditPage
from router.admin.http.paging import decode_cursor, encode_cursor
from router.admin.operations import Answer, Call


async def latest(call: Call) -> Answer:
    """Answer with one page of the audit, newest first."""
    limit, cursor = call.query["limit"], call.query["cursor"]
    entries = call.audit.entries(None if cursor is None else decode_cursor(cursor, int))
    page = entries[:limit]
    return Answer(AuditPage(entries=page, next=encode_cursor(page[-1].number) if len(entries) > limit else None))
