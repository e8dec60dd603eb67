import pytest

from policies.view import Residency
from router.residency.exact import drift, eviction_log
from router.residency.exact.difference import Difference
from router.residency.exact.drift import ROUNDS
from router.residency.residency_map import ResidencyMap
from tests.support.kv_wire import Wire, ids_prompt

TOKENS = list(range(100, 124))


@pytest.fixture
def view():
    """An exact view that holds four of the prompt's six blocks, and the verdicts that arrive late."""
    wire = Wire("map")
    residency = ResidencyMap()
    residency.add(0, "w:1", 4, 1_000, True)
    residency.slot(0).ingest(0, wire.batch(wire.stored(TOKENS[:16])))
    residency.late = {}
    residency.on_settled.append(residency.late.__setitem__)
    return residency


def serve(residency, prompt, cached, ticket):
    residency.slot(0).reserve(prompt, ticket, residency.match(prompt, [0])[0].tokens)
    difference = residency.slot(0).finished(prompt, 0, cached, ticket)
    residency.slot(0).release(ticket)
    return difference


def pass_rounds(residency, rounds):
    for number in range(rounds):
        serve(residency, ids_prompt([7_000 + number] * 9), 0, 10_000 + number)


def test_a_correct_prediction_has_no_difference(view):
    assert serve(view, ids_prompt(TOKENS), 16, 1) is None
    assert view.slot(0).finished(ids_prompt(TOKENS), 0, 0) is None, "not reserved: nothing was predicted"
    view.slot(0).reserve(ids_prompt(TOKENS), 2)
    assert view.slot(0).finished(ids_prompt(TOKENS), 0, 0, 2) is None, "nobody asked"


def test_a_slower_tier_explains_a_larger_hit(view):
    wire = Wire("map")
    view.slot(0).ingest(1, wire.batch(wire.stored([9, 9, 9, 9], medium="CPU")))
    assert serve(view, ids_prompt(TOKENS), 20, 1) is Difference.SLOWER_TIER
    assert serve(view, ids_prompt(TOKENS), 18, 2) is Difference.SLOWER_TIER, "connectors bring parts of blocks, too"
    assert serve(view, ids_prompt(TOKENS), 8, 3) is Difference.PENDING, "but take nothing away"


@pytest.mark.parametrize("cached", [18, 24, 400])
def test_a_hit_that_no_cache_can_have_is_unexplained(view, cached):
    """Part of a block, the last token's block, or more than the prompt."""
    assert serve(view, ids_prompt(TOKENS), cached, 1) is Difference.PENDING
    wire = Wire("map")
    view.slot(0).ingest(1, wire.batch(wire.stored(TOKENS[:20], 4)))
    pass_rounds(view, ROUNDS)
    assert view.late == {1: Difference.OTHER}


def test_a_difference_older_than_the_log_counts_as_explained(view, monkeypatch):
    monkeypatch.setattr(eviction_log, "KEPT_BLOCKS", 2)
    wire = Wire("map")
    prompt = ids_prompt(TOKENS)
    view.slot(0).reserve(prompt, 1, 16)
    for number in range(4):
        view.slot(0).ingest(1 + number, wire.batch(wire.stored([number] * 16)))
    assert view.slot(0).finished(prompt, 0, 8, 1) is Difference.EVICTED_WHILE_QUEUED


def test_pending_differences_are_bounded(view, monkeypatch):
    monkeypatch.setattr(drift, "PENDING", 3)
    for ticket in range(5):
        view.slot(0).reserve(ids_prompt([*TOKENS[:16], ticket]), ticket, 16)
    for ticket in range(5):
        assert view.slot(0).finished(ids_prompt([*TOKENS[:16], ticket]), 0, 8, ticket) is Difference.PENDING
    assert view.late == {0: Difference.OTHER, 1: Difference.OTHER}
    assert view.statistics()["slots"][0]["pending_differences"] == 3


def test_a_removed_view_settles_its_pending_differences(view):
    assert serve(view, ids_prompt(TOKENS), 8, 1) is Difference.PENDING
    view.slot(0).configure(events=False)
    assert view.late == {1: Difference.CLEARED}


def test_a_lost_link_settles_pending_differences(view):
    """The last events of a worker that dies are lost."""
    assert serve(view, ids_prompt(TOKENS), 8, 1) is Difference.PENDING
    view.slot(0).link_lost()
    assert view.late == {1: Difference.APPROXIMATE}


def test_a_changed_block_size_leaves_a_report_unjudged(view):
    residency = ResidencyMap()
    residency.add(0, "w:1", 8, 1_000, True)
    residency.slot(0).link_up()
    residency.slot(0).replay_ended(True)
    residency.slot(0).reserve(ids_prompt(TOKENS), 1, 0)
    wire = Wire("map")
    residency.slot(0).ingest(0, wire.batch(wire.stored(TOKENS)))
    assert residency.slot(0).state().residency is Residency.EXACT and residency.slot(0).state().block_size == 4
    assert residency.slot(0).finished(ids_prompt(TOKENS), 0, 20, 1) is Difference.APPROXIMATE


def test_a_report_after_an_eviction_restores_nothing(view):
    wire = Wire("map")
    prompt = ids_prompt([*TOKENS[:16], 1])
    view.slot(0).reserve(prompt, 1, 16)
    view.slot(0).ingest(1, wire.batch(wire.removed(wire.hashes(TOKENS[:16])[::-1])))
    assert view.slot(0).finished(prompt, 0, 16, 1) is None
    view.slot(0).release(1)
    assert view.match(prompt, [0])[0].tokens == 0
    assert view.statistics()["slots"][0]["reported_blocks"] == 0


def test_a_report_from_before_a_reset_restores_nothing(view):
    wire = Wire("map")
    prompt = ids_prompt([*TOKENS[:16], 1])
    view.slot(0).reserve(prompt, 1, 16)
    view.slot(0).ingest(1, wire.batch(wire.cleared()))
    assert view.slot(0).finished(prompt, 0, 16, 1) is None
    view.slot(0).release(1)
    assert view.match(prompt, [0])[0].tokens == 0
