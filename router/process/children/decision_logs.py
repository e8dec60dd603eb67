"""Pages of the decision logs of several processes, newest first.

Decisions of all processes are in one order: by time, then by process, then by their order in the process. The
monotonic clock of a host is the same in all its processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from router.admin.observe.decisions import LogPlace

_AFTER_ALL = 2**62
"""A ticket id that is greater than all others."""

Log = Mapping[str, Any]
"""The page of one process, as JSON: `decisions` and `next`."""


def cursor_for(process: int, place: LogPlace | None) -> dict[str, str]:
    """Return the query by which `process` lists its decisions before `place`."""
    if place is None:
        return {}
    if process < place.process:
        return {"cursor": place._replace(ticket_id=_AFTER_ALL).cursor}
    return {"cursor": (place if process == place.process else place._replace(ticket_id=0)).cursor}


def merge_logs(logs: Mapping[int, Log], limit: int) -> dict[str, Any]:
    """Return the latest `limit` decisions of all pages as one page.

    A process with a `next` has not read its older decisions. Decisions older than that place wait for the next page.
    """
    unread = [place for number, log in logs.items() if (place := _place(log["next"], number)) is not None]
    newest_unread = max(unread, default=None)
    merged = sorted(
        ((place, number, decision) for number, log in logs.items() for place, decision in _placed(log, number)),
        key=lambda entry: entry[0],
        reverse=True,
    )
    ready = [entry for entry in merged if newest_unread is None or entry[0] >= newest_unread]
    page = ready[:limit]
    last = page[-1][0] if len(page) < len(ready) else newest_unread
    decisions = [{**decision, "process": number, "cursor": place.cursor} for place, number, decision in page]
    return {"decisions": decisions, "next": None if last is None else last.cursor}


def _placed(log: Log, process: int) -> list[tuple[LogPlace, Any]]:
    placed = [(_place(decision["cursor"], process), decision) for decision in log["decisions"]]
    return [(place, decision) for place, decision in placed if place is not None]


def _place(cursor: str | None, process: int) -> LogPlace | None:
    place = LogPlace.of_cursor(cursor)
    return None if place is None else place._replace(process=process)
