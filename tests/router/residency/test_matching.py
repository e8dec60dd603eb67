from hypothesis import given
from hypothesis import strategies as st

from router.residency.matching import each_bit, lengths


def brute(held, blocks, start):
    length = start
    while length < blocks and held[length]:
        length += 1
    return length


def check(views, blocks, closed, open_, start=0):
    probes = []

    def probe(index):
        probes.append(index)
        return sum(1 << slot for slot, held in enumerate(views) if held[index]) | 1 << 60

    found = {}
    for length, bits in lengths(probe, blocks, closed, open_, start):
        for bit in each_bit(bits):
            slot = bit.bit_length() - 1
            assert slot not in found
            found[slot] = length
    asked = [slot for slot in range(len(views)) if (closed | open_) >> slot & 1]
    assert found == {slot: brute(views[slot], blocks, start) for slot in asked}
    return probes


@given(st.integers(0, 70), st.lists(st.integers(0, 70), max_size=9), st.integers(0, 511), st.integers(0, 20))
def test_closed_views_match_as_a_walk_would(blocks, held, mask, start):
    start = min(start, blocks)
    views = [[index < count for index in range(blocks)] for count in held]
    check(views, blocks, mask & ((1 << len(views)) - 1), 0, start)


@given(
    st.integers(0, 30).flatmap(lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), max_size=5)),
    st.data(),
)
def test_views_with_holes_match_up_to_the_hole(views, data):
    blocks = len(views[0]) if views else 0
    check(views, blocks, 0, (1 << len(views)) - 1)


def test_holes_that_probes_show_are_walked():
    """A view that is assumed to be closed: block 1 is missing, but the probe at block 4 finds a block."""
    views = [[True, False, False, False, True], [True] * 5]
    check(views, 5, 0b11, 0)


def test_a_match_needs_few_probes():
    views = [[index < count for index in range(2048)] for count in (0, 5, 700, 2048)]
    assert len(check(views, 2048, 0b1111, 0)) < 40


def test_a_mask_splits_into_single_bits():
    assert each_bit(0) == []
    assert each_bit(8) == [8]
    assert each_bit(0b10110) == [2, 4, 16]
