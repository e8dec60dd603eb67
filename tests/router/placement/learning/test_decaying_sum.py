from math import exp, prod

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


@given(st.lists(st.floats(0.0, 30.0), min_size=1, max_size=40))
def test_it_forgets_by_time_alike_whatever_comes_in_between(gaps_s):
    often, once, window_s = DecayingSum(), DecayingSum(), 10.0
    often.add(3.0, 1.0)
    once.add(3.0, 1.0)
    for gap_s in gaps_s:
        often.add(0.0, exp(-gap_s / window_s))
    once.add(0.0, exp(-sum(gaps_s) / window_s))
    assert often.value == pytest.approx(once.value)
