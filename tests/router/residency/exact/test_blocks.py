from hypothesis import given
from hypothesis import strategies as st

from router.residency.exact import blocks
from router.residency.exact.block_copies import BlockCopies, engine_key, engine_keys
from router.residency.exact.blocks import BlockIndex


def stored(index, engines, medium=None):
    block_copies = BlockCopies(index)
    tier_copies = block_copies.tier_copies(medium, 0)
    block_copies.store(tier_copies, [engine * 10 for engine in engines], engines, new_copies=True)
    return block_copies


def test_a_dropped_bit_is_swept_in_parts_and_used_again():
    index = BlockIndex()
    first, second = stored(index, range(100)), stored(index, range(50, 150))
    bit = first.bit
    first.clear()
    assert first.bit not in (bit, second.bit)
    assert index.holders(0) == bit and index.holders(700) == bit | second.bit
    assert index.sweep(30) == 30
    assert index.holders(0) == 0 and index.holders(990) == bit | second.bit
    while index.sweep(30):
        pass
    assert index.holders(700) == index.holders(990) == second.bit
    assert len(index) == 100
    assert BlockCopies(index).bit == bit


def test_sweeping_leaves_rows_of_other_blocks():
    index = BlockIndex()
    first, second = stored(index, [1, 2]), stored(index, [1])
    first.give_up()
    index.sweep(1)
    second.remove(second.tiers[None, 0], [1])
    third = stored(index, [7, 8])
    index.sweep(10)
    assert (index.holders(10), index.holders(20)) == (0, 0)
    assert index.holders(70) == index.holders(80) == third.bit
    assert len(index) == 2


def test_slower_tiers_are_swept_too():
    index = BlockIndex()
    first = stored(index, [1, 2], "CPU")
    assert index.media(10, first.bit) == "CPU" and index.holders(10) == 0
    first.give_up()
    index.sweep(10)
    assert len(index) == 0 and index.lower == {"CPU": {}}


def test_engine_keys_of_ints_and_bytes_agree():
    digest = bytes(range(32))
    number = int.from_bytes(digest, "big") & (2**64 - 1)
    assert engine_keys([number]) == engine_keys([digest]) == [engine_key(digest)]
    assert engine_keys([number, digest]) == [engine_key(number)] * 2
    assert engine_keys([-5]) == [engine_key(-5)]


def test_masks_are_shared():
    index = BlockIndex()
    block_copies = [stored(index, range(20)) for _ in range(70)]
    assert len({id(index.masks[row]) for row in range(20)}) == 1
    assert index.masks[0] == sum(one.bit for one in block_copies)


def test_sharing_masks_is_bounded(monkeypatch):
    monkeypatch.setattr(blocks, "_MASKS_KEPT", 3)
    index = BlockIndex()
    block_copies = [stored(index, range(number, 20)) for number in range(12)]
    assert len(index.shared) <= 4
    for number in range(20):
        assert index.holders(number * 10) == sum(one.bit for one in block_copies[: number + 1])


def test_two_views_share_a_slower_tier():
    index = BlockIndex()
    first, second = stored(index, [1, 2], "CPU"), stored(index, [1], "CPU")
    first.store(first.tier_copies("CPU", 1), [10], [1], new_copies=True)
    first.store(first.tier_copies("CPU", 1), [10], [1], new_copies=True)
    for left in ("CPU", "CPU", None):
        tier_copies = first.tiers["CPU", 1] if first.tiers["CPU", 1].held else first.tiers["CPU", 0]
        first.remove(tier_copies, [1])
        assert index.media(10, first.bit) == left
    assert index.media(10, second.bit) == "CPU"
    first.give_up()
    index.sweep(10)
    assert index.media(10, second.bit) == "CPU"
    assert index.media(20, first.bit) is None
    assert len(index) == 1


@given(st.lists(st.tuples(st.sampled_from(["store", "remove"]), st.integers(0, 2), st.integers(0, 6)), max_size=60))
def test_copies_are_counted(steps):
    """Several engine hashes may stand for one block: it is held until the last copy is removed."""
    index = BlockIndex()
    other = stored(index, [0])
    block_copies = BlockCopies(index)
    copies = {}
    for action, group, engine in steps:
        tier_copies = block_copies.tier_copies(None, group)
        place = (group, engine)
        if action == "store":
            block_copies.store(tier_copies, [engine // 2 * 10], [engine], new_copies=True)
            copies[place] = copies.get(place, 0) + 1
        else:
            missing = block_copies.remove(tier_copies, [engine])
            assert missing == ([] if copies.get(place) else [engine])
            copies[place] = max(0, copies.get(place, 0) - 1)
    for block in range(4):
        held = any(count for (_, engine), count in copies.items() if engine // 2 == block)
        assert bool(index.holders(block * 10) & block_copies.bit) == held
        assert bool(index.holders(block * 10) & other.bit) == (block == 0)
    assert block_copies.blocks == sum(1 for count in copies.values() if count)
