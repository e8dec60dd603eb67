import pytest

from policies.wrappers.workload_histogram import WINDOW_S, Part, WorkloadHistogram


@pytest.fixture
def asked(view):
    """`times` requests of a kind, one each `every_s`."""
    kept = WorkloadHistogram()

    def observe(prefill_s, decode_s=5.0, longest_s=None, times=1, every_s=0.0, at_s=0.0, **fields):
        placed = view("a", prefill_s=prefill_s, **fields)
        for number in range(times):
            kept.observe(placed, prefill_s if longest_s is None else longest_s, decode_s, at_s + number * every_s)
        return kept

    return observe


def test_nothing_to_split_without_two_lengths(asked):
    assert list(asked(0.1).splits(1.0)) == []
    assert list(asked(0.1, times=5).splits(1.0)) == []


def test_requests_are_split_between_two_lengths_of_prefill(asked):
    asked(0.1, times=8)
    (mix,) = asked(4.0, decode_s=2.0, times=2).splits(1.76)
    assert 0.1 < mix.at_s <= 4.0
    assert mix.long == mix.tied == pytest.approx(Part(0.4, 1.6, 6.4, 0.8, 0.0))
    assert mix.free == pytest.approx(Part(1.6, 0.16, 0.016, 8.0, 0.0))


def test_a_request_with_a_long_prefill_elsewhere_is_tied_to_its_worker(asked):
    asked(0.1, times=8)
    asked(0.1, longest_s=4.0, times=3)
    (mix,) = asked(4.0).splits(5.1)
    assert mix.long.requests == pytest.approx(1.0)
    assert mix.tied.requests == pytest.approx(4.0)
    assert mix.free.requests == pytest.approx(8.0)


def test_the_scale_is_what_keeps_workers_busy(asked):
    asked(0.1, times=8)
    (one,) = asked(4.0).splits(1.0)
    (two,) = asked(4.0, times=0).splits(2.0)
    assert two.free == pytest.approx(one.free.times(2.0))


def test_decode_externality_is_kept_per_concurrent_stream(asked):
    asked(0.1, decode_externality_s=6.0, running_requests=3)
    (mix,) = asked(4.0, decode_externality_s=1.0).splits(4.1)
    assert mix.free.decode_externality_s == pytest.approx(2.0)
    assert mix.long.decode_externality_s == pytest.approx(1.0)


def test_older_requests_weigh_less(asked):
    asked(4.0, times=10)
    asked(0.1, times=10)
    (mix,) = asked(0.1, at_s=3 * WINDOW_S, times=10).splits(1.0)
    assert mix.free.requests / mix.long.requests == pytest.approx(1.0 + 20.1, rel=0.01)
    assert list(asked(0.1, at_s=30 * WINDOW_S, times=2).splits(1.0)) == []


def test_any_length_has_a_bucket(asked):
    for seconds in (0.0, 1e-9, 0.1, 1e9):
        asked(seconds)
    short, long = sorted(mix.at_s for mix in asked(0.1).splits(1.0))
    assert 0.0 < short < 0.1 < long
