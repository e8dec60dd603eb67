from hypothesis import given
from hypothesis import strategies as st

from loadtest.plan.search import found_each, least


def found(search, holds):
    return found_each({None: search}, lambda counts: {None: holds(counts[None])})[None]


@given(threshold=st.integers(1, 40), guess=st.integers(0, 60), most=st.integers(1, 40))
def test_the_least_count_that_holds_is_found_without_asking_twice(threshold, guess, most):
    tried = []

    def holds(count):
        tried.append(count)
        return count >= threshold

    assert found(least(guess, most), holds) == (threshold if threshold <= most else None)
    assert len(tried) == len(set(tried)) <= 12
    if 1 < threshold <= most:
        assert threshold - 1 in tried, "one fewer has been tried, so that the answer is known to be the least"


@given(threshold=st.integers(1, 12), low=st.integers(0, 11), guess=st.integers(0, 14))
def test_counts_that_are_known_not_to_hold_are_not_tried(threshold, low, guess):
    low, tried = min(low, threshold - 1), []
    assert found(least(guess, 12, low), lambda count: tried.append(count) or count >= threshold) == threshold
    assert all(count > low for count in tried)


def test_a_good_guess_takes_two_tries():
    tried = []
    found(least(7, 64), lambda count: tried.append(count) or count >= 7)
    assert tried == [7, 6]


def test_searches_run_side_by_side():
    asked = []

    def hold(counts):
        asked.append(set(counts))
        return {key: count >= key for key, count in counts.items()}

    assert found_each({3: least(3, 8), 5: least(1, 8), 9: least(1, 8)}, hold) == {3: 3, 5: 5, 9: None}
    assert asked[0] == {3, 5, 9}
    assert len(asked) == 6
