import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from router.residency.chain import SEED, extend_chain, extra_bytes, pack_tokens

tokens = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@given(tokens, st.integers(1, 7), st.lists(st.sampled_from([b"", b"x", b"salt"]), max_size=12))
def test_hashes_follow_the_documented_formula(ids, size, extras):
    expected, parent = [], SEED
    for index in range(len(ids) // size):
        block = b"".join(value.to_bytes(4, "little") for value in ids[index * size : (index + 1) * size])
        extra = extras[index] if index < len(extras) else b""
        parent = xxh3_64_intdigest(parent.to_bytes(8, "little") + block + extra)
        expected.append(parent)
    assert list(extend_chain(SEED, pack_tokens(ids), size, extras)) == expected


def test_extra_bytes_are_canonical():
    assert extra_bytes(None) == extra_bytes([]) == b""
    assert extra_bytes(["lora", ("image", 3)]) == extra_bytes(["lora", ["image", 3]])
    assert extra_bytes(["ab"]) != extra_bytes(["a", "b"]) != extra_bytes([b"a", "b"])
    with pytest.raises(TypeError):
        extra_bytes([object()])


@pytest.mark.parametrize("ids", [[-1], [2**32], ["a"], [None]])
def test_values_that_are_not_ids_are_refused(ids):
    with pytest.raises(struct.error):
        pack_tokens(ids)
