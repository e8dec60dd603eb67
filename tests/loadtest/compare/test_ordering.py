import pytest

from loadtest.compare.ordering import ordering

FAST = {"a": [10.0, 20.0, 15.0], "b": [12.0, 22.5, 17.0], "c": [11.0, 19.0, 18.0]}


def by_pair(found):
    return {(pair.first, pair.second): pair for pair in found.pairs}


def test_a_small_difference_that_every_seed_shows_is_one_and_a_large_mean_is_not():
    found = ordering("ttft", FAST, FAST, higher_is_better=False)
    pairs = by_pair(found)
    assert pairs["a", "b"].live == pairs["a", "b"].modelled == 1
    assert pairs["a", "c"].live == pairs["b", "c"].live == 0
    assert (found.same, found.inverted) == (1, [])
    assert found.live == "a ~ c ~ b"


def test_where_more_is_better_it_is_the_other_way_round():
    found = ordering("hits", FAST, FAST, higher_is_better=True)
    assert by_pair(found)["a", "b"].live == -1
    assert found.live == "b ~ c ~ a"


@pytest.mark.parametrize(
    ("modelled", "same", "inverted"),
    [
        ({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.1, 6.0]}, 1, 0),
        ({"a": [1.0, 2.0, 3.0], "b": [0.0, 2.0, 9.0]}, 0, 0),
        ({"a": [4.0, 5.1, 6.0], "b": [1.0, 2.0, 3.0]}, 0, 1),
    ],
)
def test_only_an_opposite_order_contradicts(modelled, same, inverted):
    live = {rule: FAST[rule] for rule in "ab"}
    found = ordering("ttft", live, modelled, higher_is_better=False)
    assert (found.same, len(found.inverted)) == (same, inverted)


def test_a_busy_seed_counts_no_more_than_others():
    values = {"a": [10.0, 11.0, 1_000.0], "b": [20.0, 23.0, 2_100.0]}
    assert ordering("ttft", values, values, higher_is_better=False).live == "a > b"


def test_two_rules_without_goodput_are_level():
    values = {"a": [0.0, 0.0, 0.0], "b": [0.0, 0.0, 0.0], "c": [0.0, 1.0, 0.0]}
    assert ordering("goodput", values, values, higher_is_better=True).live == "c ~ a ~ b"


def test_neighbours_that_differ_are_set_apart():
    values = {"slow": [9.0, 9.1, 9.2], "fast": [1.0, 1.1, 1.0], "also": [1.0, 1.1, 1.0]}
    assert ordering("ttft", values, values, higher_is_better=False).live == "fast ~ also > slow"


def test_one_seed_gives_no_order():
    values = {"a": [1.0], "b": [2.0]}
    found = ordering("ttft", values, values, higher_is_better=False)
    assert (found.same, found.live) == (0, "a ~ b")
