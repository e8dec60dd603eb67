from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from router.admin.observe.decisions import LogPlace, list_decisions
from tests.router.admin.conftest import over_processes

TIMES = st.lists(st.integers(0, 8).map(float), max_size=12).map(sorted)


def logs_of(times):
    """Return the decisions of each process, oldest first; several may have the same time."""
    return {
        process: [LogPlace(at_s, 0, number) for number, at_s in enumerate(own, 1)] for process, own in enumerate(times)
    }


def page(log, query, limit, read):
    """Answer as a process does that reads at most `read` decisions in one call, and wants those of odd tickets."""
    before = LogPlace.of_cursor(query.get("cursor"))
    older = [place for place in reversed(log) if before is None or place[::2] < before[::2]]
    found, seen = [], 0
    while seen < min(read, len(older)) and len(found) < limit:
        if older[seen].ticket_id % 2:
            found.append({"cursor": older[seen].cursor})
        seen += 1
    return {"decisions": found, "next": older[seen - 1].cursor if seen < len(older) else None}


def query_of(cursor, process):
    return list_decisions.processes.query(SimpleNamespace(query={"cursor": cursor}), process)


@given(st.lists(TIMES, min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_pages_are_the_whole_list_once_and_in_order(times, limit, read, later):
    logs = logs_of(times)
    expected = sorted(
        (place._replace(process=process) for process, log in logs.items() for place in log if place.ticket_id % 2),
        reverse=True,
    )
    listed, cursor, calls = [], None, 0
    while calls == 0 or cursor is not None:
        pages = [page(log, query_of(cursor, process), limit, read) for process, log in logs.items()]
        merged = over_processes(list_decisions, pages, limit=limit)
        assert len(merged["decisions"]) <= limit
        listed += merged["decisions"]
        cursor, calls = merged["next"], calls + 1
        if later:  # a decision that is newer than all pages
            logs[0].append(LogPlace(99.0, 0, 2 * calls + 101))
        assert calls < 200
    assert [LogPlace.of_cursor(each["cursor"]) for each in listed] == expected
    assert [each["process"] for each in listed] == [place.process for place in expected]


def test_without_a_cursor_every_process_begins_with_its_newest():
    assert query_of(None, 3) == {"cursor": None}
