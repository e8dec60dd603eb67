import pytest

from loadtest.lab.comparison import holm, standings


def by_policy(values, **options):
    return {one.policy: one for one in standings(values, **options)}


def test_the_best_is_by_its_mean_and_others_are_measured_against_it():
    found = by_policy({"a": [10.0, 12.0], "b": [20.0, 22.0]}, higher_is_better=False)
    assert found["a"].best and found["a"].difference == 0.0 and found["a"].not_inferior is None
    assert not found["b"].best
    assert found["b"].difference == pytest.approx(10 / 11)
    assert found["b"].difference_half == pytest.approx(0.0, abs=1e-12)
    assert found["a"].half == pytest.approx(12.706, abs=1e-2)


def test_where_more_is_better_less_is_worse():
    found = by_policy({"a": [0.5, 0.6, 0.55], "b": [0.9, 0.8, 0.85]}, higher_is_better=True)
    assert found["b"].best
    assert found["a"].difference == pytest.approx(0.3 / 0.85)


def test_pairs_tell_what_means_do_not():
    noise = [100.0, 140.0, 90.0, 180.0, 120.0]
    found = by_policy(
        {"a": noise, "b": [x * 1.001 for x in noise], "c": [x + 20 + i for i, x in enumerate(noise)]},
        higher_is_better=False,
    )
    assert found["b"].not_inferior is True
    assert found["c"].worse is True and found["c"].not_inferior is False


@pytest.mark.parametrize(
    ("a", "b", "difference", "not_inferior", "worse"),
    [
        ([1.0], [5.0], 4.0, None, None),  # one seed proves nothing
        ([1.0, 2.0], [1.0, 2.0], 0.0, True, False),
        ([0.0, 0.0], [1.0, 3.0], 2.0, False, False),  # a mean of nothing is no scale
    ],
)
def test_few_seeds_and_equal_values(a, b, difference, not_inferior, worse):
    found = by_policy({"a": a, "b": b}, higher_is_better=False)["b"]
    assert (found.difference, found.not_inferior, found.worse) == (difference, not_inferior, worse)


def test_holm_asks_less_of_each_further_one_and_stops_at_the_first_that_stands():
    assert holm({"a": 0.02, "b": 0.01, "c": 0.2}) == {"a": True, "b": True, "c": False}
    assert holm({"a": 0.03, "b": 0.03}) == {"a": False, "b": False}, "0.03 > 0.05 / 2, and then nothing falls"
    assert holm({"a": None, "b": 0.04}) == {"a": None, "b": True}
