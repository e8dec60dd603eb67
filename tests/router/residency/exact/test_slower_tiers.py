import pytest

from policies.view import Residency
from router.residency.exact import exact
from tests.router.residency.exact.test_exact import TOKENS, One
from tests.support.kv_wire import Wire

UNKNOWN = [2**40 + number for number in range(3)]


@pytest.fixture
def one(wire):
    one = One(wire)
    one.send(one.wire.stored(TOKENS))
    return one


def by_hash(wire, hashes, block_size=0, **fields):
    """Return the event of ``OffloadingConnector`` without ``self_describing_kv_events``."""
    names = {"block_hashes": hashes, "parent_block_hash": None, "token_ids": [], "block_size": block_size}
    return wire.stored(TOKENS, **names, **{"medium": "CPU", **fields})


def test_a_row_of_clears_is_one(one):
    view = one.map._slots[0].event_feed.exact
    departures = view.block_copies.bit
    one.send(*[one.wire.cleared()] * 1_000, one.wire.stored(TOKENS), one.wire.cleared(), one.wire.stored(TOKENS))
    assert one.match().tokens == 24
    assert view.block_copies.bit == departures << 2


def still_exact(one, skipped):
    assert one.match().residency is Residency.EXACT
    assert one.figures["malformed_events"] == 0
    assert one.figures["skipped_blocks"] == skipped


@pytest.mark.parametrize("block_size", [0, 4, 64, -1])
def test_known_blocks_are_added_by_their_hashes_alone(one, block_size):
    hashes = one.wire.hashes(TOKENS)
    one.send(*[by_hash(one.wire, [block], block_size) for block in hashes])
    assert one.figures["blocks_in_slower_tiers"] == 6
    still_exact(one, 0)
    one.send(one.wire.removed(hashes))
    assert one.match().by_tier == {"GPU": 0, "CPU": 24}
    one.send(one.wire.removed(hashes[3:], medium="CPU"))
    assert one.match().by_tier == {"GPU": 0, "CPU": 12}
    still_exact(one, 0)


def test_a_block_announced_twice_by_hash_is_one_copy(one):
    hashes = one.wire.hashes(TOKENS)
    one.send(by_hash(one.wire, hashes), by_hash(one.wire, hashes[:1]), one.wire.removed(hashes, medium="CPU"))
    assert one.figures["blocks_in_slower_tiers"] == 0


def test_unknown_hashes_are_skipped(one):
    one.send(by_hash(one.wire, [*UNKNOWN, one.wire.hashes(TOKENS)[0]]), one.wire.removed(UNKNOWN, medium="CPU"))
    assert one.figures["blocks_in_slower_tiers"] == 1
    assert one.figures["unknown_removals"] == 0
    still_exact(one, 3)


def test_hits_below_the_gpu_are_expected_once_blocks_were_skipped(one):
    view = one.map._slots[0].event_feed.exact
    assert not view.has_slower_tiers
    one.send(by_hash(one.wire, UNKNOWN))
    assert view.has_slower_tiers


@pytest.mark.parametrize("first", [True, False])
def test_another_block_size_below_leaves_the_gpus_size_alone(wire, first):
    one = One(wire)
    coarse = Wire(wire.shape, salt="below", block_size=8).stored(TOKENS, medium="CPU")
    fine = wire.stored(TOKENS)
    one.send(*((coarse, fine) if first else (fine, coarse)))
    assert (one.map.slot(0).state().block_size, one.match().tokens) == (4, 24)
    still_exact(one, 3)


@pytest.mark.parametrize(
    "fields",
    [
        {"token_ids": TOKENS[:-1]},
        {"token_ids": [-1] * 24},
        {"token_ids": None},
        {"block_size": None},
        {"kv_cache_spec_kind": "sliding_window", "group_idx": 1},
    ],
)
def test_odd_events_about_a_slower_tier_cast_no_doubt_on_the_gpu(one, fields):
    if one.wire.shape == "row":
        event = one.wire.stored(TOKENS, medium="CPU")
        names = ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"]
        names += ["extra_keys", "group_idx", "kv_cache_spec_kind"]
        for name, value in fields.items():
            event[1 + names.index(name)] = value
    else:
        event = one.wire.stored(TOKENS, medium="CPU") | fields
    one.send(event)
    assert one.match().residency is Residency.EXACT
    assert one.figures["malformed_events"] == 0


def test_the_gpus_own_events_need_their_tokens(one):
    one.send(by_hash(one.wire, one.wire.hashes(TOKENS), 4, medium="GPU"))
    assert one.match().residency is Residency.APPROXIMATE
    assert one.figures["malformed_events"] == 1


def test_a_slower_tier_that_overflows_is_bounded_and_casts_no_doubt(one, monkeypatch):
    monkeypatch.setattr(exact, "LOWER_TIER_BLOCKS", 16)
    for start in range(20):
        tokens = [start, *TOKENS[1:]]
        one.send(one.wire.stored(tokens), by_hash(one.wire, one.wire.hashes(tokens)))
    assert one.figures["blocks_in_slower_tiers"] <= 16
    still_exact(one, 0)
