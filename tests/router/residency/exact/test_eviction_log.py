"""The log's content at each moment, compared with a list of all events."""

from hypothesis import given
from hypothesis import strategies as st

from router.residency.exact import eviction_log as module
from router.residency.exact.eviction_log import EvictionLog

happenings = st.lists(
    st.one_of(
        st.lists(st.integers(1, 6), min_size=1, max_size=4).map(lambda run: ("came", run)),
        st.integers(1, 6).map(lambda block: ("went", [block])),
    ),
    max_size=40,
)


def write(eviction_log, happening):
    kind, blocks = happening
    if kind == "came":
        eviction_log.arrive(blocks)
    else:
        eviction_log.departed.extend(blocks)
    eviction_log.bound()


@given(before=happenings, after=happenings, wanted=st.sets(st.integers(1, 7), max_size=2))
def test_changes_come_in_order_and_one_run_at_once(before, after, wanted):
    eviction_log = EvictionLog()
    for happening in before:
        write(eviction_log, happening)
    arrivals, departures = eviction_log.arrivals, eviction_log.departures
    for happening in after:
        write(eviction_log, happening)
    expected = []
    for kind, blocks in after:
        concerned = dict.fromkeys(wanted.intersection(blocks), kind == "came")
        if concerned:
            expected.append(concerned)
    assert list(eviction_log.changes(sorted(wanted), arrivals, departures)) == expected
    assert list(eviction_log.departed_since(departures)) == [
        block for kind, run in after if kind == "went" for block in run
    ]


def test_hashes_are_found_at_entry_boundaries_only():
    """Entries are searched as bytes: the middle of two neighbours must not count as an entry."""
    eviction_log = EvictionLog()
    eviction_log.arrive([0x0102030405060708, 0x1112131415161718])
    across = int.from_bytes(eviction_log._arrived.entries.tobytes()[3:11], "little")
    assert list(eviction_log.changes([across], 0, 0)) == []
    assert list(eviction_log.changes([0x1112131415161718], 0, 0)) == [{0x1112131415161718: True}]


def test_the_latest_entries_are_kept(monkeypatch):
    monkeypatch.setattr(module, "KEPT_BLOCKS", 10)
    eviction_log = EvictionLog()
    for number in range(100):
        write(eviction_log, ("came", [number, 1_000 + number, 2_000 + number]))
        write(eviction_log, ("went", [number]))
    assert (eviction_log.arrivals, eviction_log.departures) == (300, 100)
    assert not eviction_log.reaches(0, 100) and not eviction_log.reaches(300, 0)
    assert eviction_log.reaches(290, 90) and eviction_log.departed_since(79) is None
    assert list(eviction_log.departed_since(95)) == [95, 96, 97, 98, 99]
    assert list(eviction_log.changes([98, 99], 290, 90)) == [{98: True}, {98: False}, {99: True}, {99: False}]
    assert len(eviction_log._runs.entries) == len(eviction_log._departed_by_run.entries) <= 8
