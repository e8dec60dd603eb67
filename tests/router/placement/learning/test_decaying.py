from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.placement.learning.decaying import DecayingMean, DecayingSum

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


@given(VALUES, st.floats(0.5, 1.0))
def test_it_is_the_mean_weighted_by_age(values, forgetting):
    mean = DecayingMean(forgetting)
    for value in values:
        mean.observe(value)
    weights = [forgetting**age for age in range(len(values))][::-1]
    assert mean.weight == pytest.approx(sum(weights))
    expected = sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)
    assert mean.value == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(VALUES, st.integers(1, 70))
def test_without_forgetting_the_first_observations_count_alike(values, most):
    mean, expected = DecayingMean(most=most), values[0]
    for number, value in enumerate(values):
        mean.observe(value)
        share = 1.0 / min(number + 1, most)
        expected = share * value + (1.0 - share) * expected
    assert mean.weight == min(len(values), most)
    assert mean.value == pytest.approx(expected, rel=1e-9, abs=1e-6)
    if len(values) <= most:
        assert mean.value == pytest.approx(sum(values) / len(values), rel=1e-9, abs=1e-6)


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0.0, 1.0)), max_size=40))
def test_each_addition_fades_by_what_later_ones_keep(additions):
    total = DecayingSum()
    for value, kept in additions:
        total.add(value, kept)
    shares = [prod([kept for _, kept in additions[place + 1 :]]) for place in range(len(additions))]
    expected = sum(share * value for share, (value, _) in zip(shares, additions, strict=True))
    assert total.value == pytest.approx(expected, rel=1e-9, abs=1e-6)
