import pytest

from router.telemetry.histogram import count, empty, named_buckets, quantile, total

BOUNDS = (1.0, 2.0, 4.0)


def counted(*values):
    counts = empty(BOUNDS)
    for value in values:
        count(counts, BOUNDS, value)
    return counts


def test_each_value_counts_in_the_bucket_that_ends_at_or_above_it():
    assert counted(0.5, 1.0, 1.5, 4.0, 9.0) == [2, 1, 1, 1]


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ([0, 0, 0, 0], 0.5, None),
        ([4, 0, 0, 0], 0.5, 0.5),
        ([0, 4, 0, 0], 0.25, 1.25),
        ([2, 0, 2, 0], 0.5, 1.0),
        ([2, 0, 2, 0], 0.75, 3.0),
        ([1, 0, 0, 99], 0.5, 4.0),
    ],
)
def test_a_quantile_lies_within_its_bucket(counts, share, value):
    assert quantile(counts, BOUNDS, share) == value


def test_totals_add_up_bucket_by_bucket():
    assert total([[1, 2, 3, 4], [10, 0, 0, 1]], BOUNDS) == [11, 2, 3, 5]
    assert total([], BOUNDS) == [0, 0, 0, 0]


def test_buckets_have_names():
    assert named_buckets((10, 2_000)) == ["up to 10", "11 to 2,000", "over 2,000"]
