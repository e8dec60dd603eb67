"""The test for a lasting change against its definition: the largest sum over any latest run of observations."""

from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.placement.learning.change_detector import ChangeDetector

CHANGE, SURE, SURE_BY_ONE, KEPT = 0.75, 15.0, 3.0, 5
RATIOS = st.lists(st.integers(-16, 16).map(lambda eighths: eighths / 8), max_size=60)
"""Ratios and noises whose sums are exact in floating point, so that the border itself is tested."""


def make_detector():
    return ChangeDetector(CHANGE, sure=SURE, sure_by_one=SURE_BY_ONE, kept=KEPT)


def naive(log_ratios, noise, sign):
    """Return the change in one direction after the last observation, from all observations since the last change."""
    gains = [
        min(SURE_BY_ONE, max(-SURE_BY_ONE, CHANGE * (sign * ratio - CHANGE / 2) / noise**2)) for ratio in log_ratios
    ]
    sums = [sum(gains[start:]) for start in range(len(gains))]
    if max(sums) < SURE:
        return None
    begun = max(start for start, total in enumerate(sums) if total == max(sums))
    kept = log_ratios[begun:][-KEPT:]
    return sorted(kept)[len(kept) // 2]


@given(RATIOS, st.sampled_from([0.125, 0.25, 0.5]))
def test_it_finds_what_the_definition_finds(log_ratios, noise):
    detector, since = make_detector(), []
    for ratio in log_ratios:
        since.append(ratio)
        up, down = naive(since, noise, 1.0), naive(since, noise, -1.0)
        found = detector.observe(ratio, noise)
        assert found == (down if up is None else up)
        if found is not None:
            since = []


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_lasting_change_is_found_after_five_observations_with_its_size(sign):
    detector = make_detector()
    answers = [detector.observe(sign * log(3.0), 0.1) for _ in range(5)]
    assert answers == [None] * 4 + [sign * log(3.0)]
    assert detector.observe(sign * log(3.0), 0.1) is None, "it begins again"
