from functools import partial

import pytest

from policies.view import Residency
from router.residency.exact import block_copies, orphans
from router.residency.residency_map import ResidencyMap
from tests.support.kv_wire import BLOCK_SIZE, Wire, ids_prompt

TOKENS = list(range(100, 124))


class One:
    def __init__(self, wire, capacity=1000):
        self.wire = wire
        self.map = ResidencyMap()
        self.map.add(0, "w:1", BLOCK_SIZE, capacity, True)
        self.seq = 0

    def send(self, *events):
        outcome = self.map.slot(0).ingest(self.seq, self.wire.batch(*events))
        self.seq += 1
        return outcome

    def match(self, tokens=(*TOKENS, 1), extras=None):
        return self.map.match(ids_prompt(tokens, extras), [0])[0]

    @property
    def figures(self):
        return self.map.statistics()["slots"][0]


@pytest.fixture
def one(wire):
    return One(wire)


def test_the_last_token_is_never_cached(one):
    one.send(one.wire.stored(TOKENS))
    found = [one.match(TOKENS[:length]).tokens for length in (24, 23, 21, 20, 5, 4, 1, 0)]
    assert found == [20, 20, 20, 16, 4, 0, 0, 0]


def test_a_copy_stays_until_the_last_is_removed(one):
    one.send(one.wire.stored(TOKENS), one.wire.stored(TOKENS, 5), one.wire.stored(TOKENS, 5))
    last = one.wire.hashes(TOKENS)[-1:]
    assert one.figures["copies_beyond_the_first"] == 2
    for tokens in (24, 24, 24, 20):
        assert one.match().tokens == tokens
        one.send(one.wire.removed(last))


def test_a_reannounced_prefix_adds_no_copy(one):
    one.send(one.wire.stored(TOKENS))
    one.send(one.wire.stored(TOKENS[:12]), one.wire.stored(TOKENS))
    assert one.figures["copies_beyond_the_first"] == 0
    one.send(one.wire.removed(one.wire.hashes(TOKENS)))
    assert one.match().tokens == 0


@pytest.mark.parametrize(("origin", "left"), [("NEW", 24), ("REUSED", 0)])
def test_the_origin_of_an_event_decides_whether_it_adds_a_copy(origin, left):
    one = One(Wire("map"))
    one.send(one.wire.stored(TOKENS, origin=origin), one.wire.stored(TOKENS, origin=origin))
    one.send(one.wire.removed(one.wire.hashes(TOKENS)))
    assert one.match().tokens == left


def test_a_one_block_prompt_adds_a_copy_each_time(one):
    one.send(one.wire.stored(TOKENS[:4]), one.wire.stored(TOKENS[:4]))
    one.send(one.wire.removed(one.wire.hashes(TOKENS)[:1]))
    assert one.match().tokens == 4


def test_hashes_may_be_bytes():
    one = One(Wire("map"))
    event = one.wire.stored(TOKENS)
    digests = [b"x" * 24 + value.to_bytes(8, "big") for value in event["block_hashes"]]
    one.send(event | {"block_hashes": digests[:3], "token_ids": TOKENS[:12]})
    one.send(event | {"block_hashes": digests[3:], "token_ids": TOKENS[12:], "parent_block_hash": digests[2]})
    assert one.match().tokens == 24
    one.send(one.wire.removed(digests[1:]))
    assert one.match().tokens == 4


def test_orphans_are_attached_when_their_parent_arrives(one):
    hashes = one.wire.hashes(TOKENS)
    one.send(one.wire.stored(TOKENS, 4), one.wire.stored(TOKENS[:16], 2), one.wire.removed(hashes[-1:]))
    assert one.match().tokens == 0
    assert "4 blocks wait for their parents" in one.map.slot(0).state().reason
    one.send(one.wire.stored(TOKENS[:8]))
    assert one.match().tokens == 20
    assert one.figures["orphan_blocks"] == one.figures["orphan_bytes"] == 0
    one.send(one.wire.removed(hashes[:5]))
    assert one.map.slot(0).state().blocks == 0


def test_orphans_are_bounded(one, monkeypatch):
    monkeypatch.setattr(orphans, "ORPHAN_BYTES", 10_000)
    for first in range(100):
        one.send(one.wire.stored([first, *TOKENS[1:]], 1), one.wire.removed(one.wire.hashes([first, *TOKENS[1:]])[3:4]))
    assert one.figures["orphan_bytes"] <= 10_000
    assert one.figures["orphan_blocks"] + one.figures["dropped_orphan_blocks"] == 500
    one.send(one.wire.stored([99, *TOKENS[1:4]]), one.wire.stored([0, *TOKENS[1:4]]))
    assert one.match([99, *TOKENS[1:], 1]).tokens == 12
    assert one.match([0, *TOKENS[1:], 1]).tokens == 4


def test_removals_of_blocks_never_seen_are_counted(one):
    one.send(one.wire.stored(TOKENS[:4]), one.wire.removed([1, 2, 3]))
    assert one.figures["unknown_removals"] == 3
    assert one.map.slot(0).state().residency is Residency.EXACT


def test_extra_keys_split_the_cache():
    one = One(Wire("map"))
    keys = [["adapter", ["img", 2], "salt"], ["adapter"], None, None, None, None]
    one.send(one.wire.stored(TOKENS, lora_name="adapter", extra_keys=keys))
    assert one.match().tokens == 0
    assert one.match(extras=[["adapter", ("img", 2), "salt"], ["adapter"]]).tokens == 24
    assert one.match(extras=[["adapter", ("img", 2), "other"], ["adapter"]]).tokens == 0


@pytest.mark.parametrize(("fields", "key"), [({"lora_name": "adapter"}, "adapter"), ({"lora_id": 3}, 3)])
def test_publishers_without_extra_keys_name_the_adapter(one, fields, key):
    one.send(one.wire.stored(TOKENS, **fields))
    assert one.match().tokens == 0
    assert one.match(extras=[[key]] * 6).tokens == 24


def test_only_full_attention_groups_are_indexed(one):
    one.send(
        one.wire.stored(TOKENS, group_idx=0, kv_cache_spec_kind="full_attention"),
        one.wire.stored(TOKENS, group_idx=1, kv_cache_spec_kind="sliding_window"),
    )
    assert one.match().tokens == 24 and one.match().residency is Residency.APPROXIMATE
    assert "sliding_window" in one.map.slot(0).state().reason
    one.send(one.wire.removed(one.wire.hashes(TOKENS), group=1))
    assert one.match().tokens == 24
    one.send(one.wire.removed(one.wire.hashes(TOKENS), group=0))
    assert one.match().tokens == 0


def test_slower_tiers_are_kept_apart(one):
    one.send(one.wire.stored(TOKENS), one.wire.stored(TOKENS, medium="CPU"))
    one.send(one.wire.removed(one.wire.hashes(TOKENS)[2:]))
    match = one.match()
    assert (match.tokens, match.by_tier) == (8, {"GPU": 8, "CPU": 16})
    one.send(one.wire.cleared())
    match = one.match()
    assert (match.tokens, match.by_tier) == (0, {"GPU": 0, "CPU": 24})
    one.send(one.wire.removed(one.wire.hashes(TOKENS)[3:], medium="CPU"))
    assert one.match().by_tier == {"GPU": 0, "CPU": 12}
    one.send(one.wire.stored(TOKENS))
    assert one.match().tokens == 24


def test_what_a_slower_tier_holds_counts_whatever_the_gpu_holds(one):
    held = partial(one.map.held_below, ids_prompt((*TOKENS, 1)), [0, 7])
    assert held({"CPU"}) == {}
    one.send(one.wire.stored(TOKENS), one.wire.stored(TOKENS[:16], medium="cpu"))
    assert held({"CPU"}) == {0: 16}
    assert held({"STORAGE"}) == {}
    one.send(one.wire.removed(one.wire.hashes(TOKENS)[3:4], medium="cpu"))
    assert held({"CPU"}) == {0: 12}
    one.map.remove(0)
    assert held({"CPU"}) == {}


def test_remote_stores_do_not_count_as_the_workers_gpu():
    one = One(Wire("map"))
    one.send(one.wire.stored(TOKENS, medium="GPU", locality="REMOTE"))
    assert one.match().tokens == 0 and one.match().by_tier == {"GPU": 0, "REMOTE": 24}


def test_the_block_size_comes_from_the_events():
    one = One(Wire("map", block_size=8), capacity=10)
    one.send(one.wire.stored(TOKENS))
    assert (one.map.slot(0).state().block_size, one.map.slot(0).state().capacity_blocks) == (8, 5)
    assert one.match().tokens == 24
    one.map.slot(0).configure(block_size=4, capacity_blocks=20)
    assert (one.map.slot(0).state().block_size, one.map.slot(0).state().capacity_blocks) == (8, 10)
    one.send(Wire("map").stored(TOKENS))
    assert one.map.slot(0).state().residency is Residency.APPROXIMATE
    assert "mixed" in one.map.slot(0).state().reason


@pytest.mark.parametrize(
    "change",
    [{"token_ids": TOKENS[:-1]}, {"block_size": 0}, {"token_ids": [-1] * 24}, {"token_ids": [2**32] * 24}],
)
def test_an_invalid_event_is_counted(change):
    one = One(Wire("map"))
    one.send(one.wire.stored(TOKENS) | change, one.wire.stored([7, *TOKENS[1:]]))
    assert one.match([7, *TOKENS[1:], 1]).tokens == 24
    assert one.figures["malformed_events"] == 1
    assert one.map.slot(0).state().residency is Residency.APPROXIMATE
    one.send(one.wire.cleared())
    assert one.map.slot(0).state().residency is Residency.EXACT


def test_unknown_event_types_are_counted_and_ignored(one):
    one.send(["BlockMoved", 1], one.wire.stored(TOKENS))
    assert one.match().tokens == 24 and one.match().residency is Residency.EXACT
    assert one.figures["unknown_events"] == 1


def test_lookahead_makes_the_view_approximate():
    one = One(Wire("map"))
    one.send(one.wire.stored(TOKENS, lookahead_token_ids=[[1]] * 6))
    assert one.match().residency is Residency.APPROXIMATE and "looked-ahead" in one.map.slot(0).state().reason


def test_more_blocks_than_fit_are_a_leak(wire):
    one = One(wire, capacity=16)
    for first in range(20):
        one.send(one.wire.stored([first, *TOKENS[1:]]))
    assert one.map.slot(0).state().blocks <= 32
    assert "removals must be missing" in one.map.slot(0).state().reason
    assert one.match([19, *TOKENS[1:], 1]).tokens == 24
    assert one.match([0, *TOKENS[1:], 1]).tokens == 0


def test_media_are_bounded(one):
    for number in range(2 * block_copies.MEDIA_KEPT):
        one.send(one.wire.stored(TOKENS, medium=f"tier {number}"))
    assert one.figures["blocks_in_slower_tiers"] == 6 * block_copies.MEDIA_KEPT


def test_a_garbled_batch_makes_the_view_approximate_until_a_clear(one):
    one.send(one.wire.stored(TOKENS))
    assert one.map.slot(0).ingest(1, b"\xc1").outcome == "rejected"
    one.seq = 2
    assert one.match().residency is Residency.APPROXIMATE and one.match().tokens == 0
    one.send(one.wire.stored([5, *TOKENS[1:]]))
    assert one.match([5, *TOKENS[1:], 1]).tokens == 24
    assert "could not be read" in one.map.slot(0).state().reason
    one.send(one.wire.cleared())
    assert one.map.slot(0).state().residency is Residency.EXACT
    assert one.figures["decode_errors"] == 1
