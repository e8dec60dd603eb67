from __future__ import annotations

import pytest

from policies.view import Residency
from router.residency.eviction_log import EvictionLog
from tests.support.followed import FollowedMap, Line
from tests.support.kv_wire import BLOCK_SIZE, ids_prompt

TOKENS = list(range(100, 124))


@pytest.fixture
def followed():
    made = FollowedMap()
    made.add(0, "w:1", BLOCK_SIZE, 100, True)
    made.link_up(0)
    made.replay_ended(0, True)
    return made


def matched(residency, tokens=TOKENS):
    return residency.match(ids_prompt([*tokens, 1]), [0])[0]


def test_a_follower_that_joins_later_has_the_whole_view(followed, wire):
    followed.ingest(0, 0, wire.batch(wire.stored(TOKENS)))
    ingested = followed.lines[0].view
    later = FollowedMap()
    later.add(0, "w:1", BLOCK_SIZE, 100, False)
    later.configure(0, events=True)
    later.followed.tables = followed.followed.tables
    line = later.lines[0] = Line(later, 0, ingested)
    line.send(ingested.joined())
    assert (matched(later).tokens, matched(later).residency) == (24, Residency.EXACT)
    assert later.state(0).blocks == 6


def test_a_change_before_the_whole_view_asks_for_it(followed):
    change = followed.lines[0].view.changed()
    followed.forget_events(0)
    assert not followed.follow(0, change, followed.lines[0])
    assert matched(followed).residency is Residency.APPROXIMATE
    assert followed.follow(0, followed.lines[0].view.joined(), followed.lines[0])
    assert matched(followed).residency is Residency.EXACT


def test_the_last_state_counts_while_nobody_ingests(followed, wire):
    followed.ingest(0, 0, wire.batch(wire.stored(TOKENS)))
    followed.unfollow(0)
    assert (matched(followed).tokens, matched(followed).residency) == (24, Residency.UNKNOWN)


def report_one_block(followed, tokens):
    prompt = ids_prompt([*tokens[:BLOCK_SIZE], 1])
    followed.reserve(0, prompt, 1, 0)
    followed.finished(0, prompt, 0, BLOCK_SIZE, 1)
    assert followed.state(0).blocks == 1


def test_after_a_loss_announced_blocks_leave_no_room_for_reported_ones(wire):
    followed = FollowedMap()
    followed.add(0, "w:1", BLOCK_SIZE, 7, True)
    followed.link_up(0)
    followed.replay_ended(0, True)
    report_one_block(followed, list(range(BLOCK_SIZE)))
    followed.ingest(0, 1, wire.batch(wire.stored(TOKENS)))
    followed.replay_ended(0, False)
    assert followed.state(0).residency is Residency.APPROXIMATE
    assert followed.state(0).blocks == 6


def test_a_reported_block_that_a_whole_view_announces_counts_once(followed, wire, monkeypatch):
    report_one_block(followed, TOKENS)
    monkeypatch.setattr(EvictionLog, "reaches", lambda *_: False)
    followed.ingest(0, 0, wire.batch(wire.stored(TOKENS)))
    assert followed.state(0).blocks == 6


def test_slower_tiers_are_followed(followed, wire):
    followed.ingest(0, 0, wire.batch(wire.stored(TOKENS), wire.stored(TOKENS, medium="CPU")))
    followed.ingest(0, 1, wire.batch(wire.removed(wire.hashes(TOKENS)[2:])))
    assert matched(followed).by_tier == {"GPU": 8, "CPU": 16}
    prompt = ids_prompt([*TOKENS, 1])
    assert followed.held_below(prompt, [0], {"CPU"}) == {0: 24}
    followed.ingest(0, 2, wire.batch(wire.removed(wire.hashes(TOKENS)[4:], "CPU")))
    assert matched(followed).by_tier == {"GPU": 8, "CPU": 8}
    followed.ingest(0, 3, wire.batch(wire.cleared()))
    assert matched(followed).by_tier == {"GPU": 0, "CPU": 16} or matched(followed).by_tier == {"CPU": 16, "GPU": 0}


def test_a_block_stored_again_and_removed_in_one_step_is_gone(followed, wire):
    followed.ingest(0, 0, wire.batch(wire.stored(TOKENS)))
    last = wire.hashes(TOKENS)[-1:]
    followed.ingest(0, 1, wire.batch(wire.stored(TOKENS, 5), wire.removed(last), wire.removed(last)))
    assert matched(followed).tokens == 20


def test_names_of_reported_blocks_reach_the_process_that_ingests(followed, wire):
    """After a loss, a report shows the parent of blocks that wait; their removals count from then on."""
    followed.ingest(0, 5, wire.batch(wire.stored(TOKENS, 3)))
    followed.replay_ended(0, False)
    prompt = ids_prompt([*TOKENS, 1])
    followed.reserve(0, prompt, 1, 0)
    followed.ingest(0, 6, wire.batch(wire.stored(TOKENS, 3)))
    followed.finished(0, prompt, 1, 12, 1)
    followed.release(0, 1)
    assert matched(followed).tokens == 24
    followed.ingest(0, 7, wire.batch(wire.removed(wire.hashes(TOKENS)[2:3])))
    assert matched(followed).tokens == 8


def test_a_view_that_leaves_frees_its_place(followed, wire):
    followed.ingest(0, 0, wire.batch(wire.stored(TOKENS)))
    followed.remove(0)
    followed.add(0, "w:2", BLOCK_SIZE, 100, True)
    followed.link_up(0)
    followed.replay_ended(0, True)
    assert matched(followed).tokens == 0


def test_an_announcement_of_no_blocks_changes_nothing(followed, wire):
    followed.ingest(0, 5, wire.batch(wire.stored(TOKENS)))
    followed.replay_ended(0, False)
    followed.ingest(0, 6, wire.batch(wire.stored([]), wire.stored(TOKENS)))
    assert matched(followed).tokens == 24


def test_blocks_that_waited_for_their_parent_are_no_witnesses(followed, wire):
    """They may be older than the loss, so their eviction says nothing about the blocks that were missed."""
    followed.ingest(0, 5, wire.batch())
    followed.replay_ended(0, False)
    followed.ingest(0, 6, wire.batch(wire.stored(TOKENS, 1)))
    followed.ingest(0, 7, wire.batch(wire.stored(TOKENS[:4])))
    assert matched(followed).tokens == 24
    view = followed._slots[0].event_view.view
    assert view.relearning.active
    assert not view.relearning._witnesses


def test_a_change_that_found_no_room_is_made_again(followed, wire, monkeypatch):
    def refuse(*_):
        raise OSError("no room")

    def failing(seq, *events):
        line.view.event_view.ingest(seq, wire.batch(*events), False)
        with monkeypatch.context() as full:
            full.setattr(line.view._tables, "_make", refuse)
            full.setattr(followed.tables.of(None), "make_room", refuse)
            with pytest.raises(OSError, match="no room"):
                line.view.changed()

    line = followed.lines[0]
    followed.ingest(0, 0, wire.batch(wire.stored(TOKENS)))
    failing(1, wire.cleared(), wire.stored(TOKENS[:4]))
    assert matched(followed).tokens == 24
    change = line.view.changed()
    assert change.begins_again
    line.send(change)
    assert matched(followed).tokens == 4
    failing(2, wire.stored(TOKENS[:8]), wire.stored(TOKENS[:8], medium="CPU"))
    change = line.view.changed()
    assert len(change.arrived) == 16
    line.send(change)
    assert matched(followed).by_tier == {"GPU": 8}
    assert followed.held_below(ids_prompt([*TOKENS, 1]), [0], {"CPU"}) == {0: 8}
