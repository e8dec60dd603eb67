from hypothesis import given
from hypothesis import strategies as st

from router.metrics.instruments import Counter, Distribution, Histogram


def test_a_counter_adds_by_labels():
    counter = Counter()
    counter.add()
    counter.add(2.5, ("a",))
    counter.add(0.5, ("a",))
    assert counter.values == {(): 1.0, ("a",): 3.0}


def test_a_bucket_bound_is_inclusive():
    distribution = Distribution((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.1):
        distribution.observe(value)
    assert distribution.counts == [2, 2, 1] and distribution.count == 5 and distribution.total == 7.1


@given(st.lists(st.floats(0, 10)))
def test_observe_all_equals_single_observations(values):
    one, many = Distribution((1.0, 3.0, 9.0)), Distribution((1.0, 3.0, 9.0))
    for value in values:
        one.observe(value)
    many.observe_all(values)
    assert one.counts == many.counts


def test_a_histogram_observes_by_labels():
    histogram = Histogram((1.0,))
    histogram.observe(0.5, ("a",))
    assert histogram.at(("a",)).counts == [1, 0] and histogram.at(("b",)).count == 0
