"""The traffic of the last hour."""

from __future__ import annotations

from router.admin.documents import Shape
from router.admin.http.paging import page_of, paged
from router.admin.operations import Answer, Call, read
from router.admin.watch import Watch
from router.telemetry.history import TrafficPoint


class Traffic(Shape):
    """The traffic of the last hour in points of ten seconds, newest first. `next` is the `cursor` of the following
    page, or null."""

    points: list[TrafficPoint]
    next: str | None = None


@read(
    "traffic",
    Traffic,
    query=paged(360, 360, "most points to return", watch=True),
    watch=Watch("points", "at", newest_first=True, most=20),
    problems={410: "the point that the cursor names is older than an hour"},
)
async def show_traffic(call: Call) -> Answer:
    """The traffic of the last hour by route and model, in points of ten seconds, newest first."""
    points = list(call.system.traffic.points)[::-1]
    page, cursor = page_of(points, lambda point: repr(point.at), call.query["limit"], call.query["cursor"])
    return Answer(Traffic(points=list(page), next=cursor))
