from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.placement.learning.decaying_sum import DecayingSum


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0.0, 1.0)), max_size=40))
def test_each_addition_fades_by_what_later_ones_keep(additions):
    total = DecayingSum()
    for value, kept in additions:
        total.add(value, kept)
    shares = [prod([kept for _, kept in additions[place + 1 :]]) for place in range(len(additions))]
    expected = sum(share * value for share, (value, _) in zip(shares, additions, strict=True))
    assert total.value == pytest.approx(expected, rel=1e-9, abs=1e-6)
