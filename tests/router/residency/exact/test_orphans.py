import sys

import pytest

from router.residency.exact import orphans as module
from router.residency.exact.orphans import OrphanBlocks, OrphanRun


def run_of(parent, *engines, tokens=16):
    return OrphanRun(parent, None, engines, bytes(4 * tokens * len(engines)), None, False)


def test_waiting_runs_come_newest_first():
    orphanage = OrphanBlocks()
    old, first, second, third = (run_of(parent, 10 + parent) for parent in range(4))
    orphanage.add(old)
    since = orphanage.added
    for run in (first, second, third):
        orphanage.add(run)
    assert list(orphanage.since(since)) == [third, second, first]
    assert orphanage.adopt(2) == [second]
    assert list(orphanage.since(since)) == [third, first]
    orphanage.clear()
    assert list(orphanage.since(0)) == []


@pytest.mark.parametrize("adopted", [True, False])
def test_adopted_and_dropped_runs_take_no_memory(monkeypatch, adopted):
    orphanage, run = OrphanBlocks(), run_of(1, 11)
    held = sys.getrefcount(run)
    orphanage.add(run)
    if adopted:
        orphanage.adopt(1)
    else:
        monkeypatch.setattr(module, "ORPHAN_BYTES", 1)
        orphanage.add(run_of(2, 12))
    assert sys.getrefcount(run) == held
    assert list(orphanage.since(0)) == []
