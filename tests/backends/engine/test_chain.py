from array import array

from hypothesis import given
from hypothesis import strategies as st

from backends.engine.chain import BlockHasher


def hashes(tokens, lora=None, salt=None, block_tokens=4):
    found = []
    BlockHasher(block_tokens, lora, salt).extend(found, array("I", tokens))
    return found


def test_only_full_blocks_are_hashed():
    assert [len(hashes(range(count))) for count in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_hashes_are_stable_across_processes():
    assert hashes([1, 2, 3, 4]) == [12405026733726486344]


@given(st.lists(st.integers(0, 2), max_size=24), st.lists(st.integers(0, 2), max_size=24))
def test_equal_hashes_mean_equal_prefixes(left, right):
    for index, (one, other) in enumerate(zip(hashes(left), hashes(right), strict=False), start=1):
        assert (one == other) == (left[: 4 * index] == right[: 4 * index])


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.data())
def test_extending_piecemeal_gives_the_same(tokens, data):
    hasher = BlockHasher(4, "adapter", "salt")
    found = []
    for cut in sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=4))):
        hasher.extend(found, array("I", tokens[:cut]))
    hasher.extend(found, array("I", tokens))
    assert found == hashes(tokens, "adapter", "salt")


def test_adapter_and_salt_split_the_cache():
    tokens = list(range(8))
    variants = [(None, None), ("a", None), (None, "a"), ("a", "a"), ("b", None), ("ab", None), ("a", "b")]
    chains = [hashes(tokens, *variant) for variant in variants]
    assert len({chain[0] for chain in chains}) == len({chain[1] for chain in chains}) == len(variants)


def test_extra_keys_name_the_adapter_everywhere_and_the_salt_once():
    assert BlockHasher(4, "a", "s").extra_keys(0, 3) == (("a", "s"), ("a",), ("a",))
    assert BlockHasher(4, "a", "s").extra_keys(1, 3) == (("a",), ("a",))
    assert BlockHasher(4, None, "s").extra_keys(0, 2) == (("s",), None)
    assert BlockHasher(4, None, None).extra_keys(0, 2) == (None, None)
    assert BlockHasher(4, "a", None).extra_keys(1, 1) == ()


def test_a_salt_with_invalid_unicode_is_hashed():
    assert hashes(range(4), salt="\ud800") != hashes(range(4))
