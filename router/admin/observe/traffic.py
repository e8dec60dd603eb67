"""The traffic of the last hour."""

from __future__ import annotations

from router.admin.documents import Traffic
from router.admin.http.paging import page_of
from router.admin.operations import Answer, Call
from router.admin.watch import Watch

WATCHED = Watch("points", "at", newest_first=True, most=20)


async def show(call: Call) -> Answer:
    """Answer with one page of the points, newest first."""
    points = list(call.system.traffic.points)[::-1]
    page, cursor = page_of(points, lambda point: repr(point.at), call.query["limit"], call.query["cursor"])
    return Answer(Traffic(points=list(page), next=cursor))
