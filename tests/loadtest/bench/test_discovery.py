"""The bench of discovery measures what it says."""

import pytest

from loadtest.bench.parts.discovery import measure, most_per_s, workers


def test_the_most_per_second_is_of_any_second():
    curve = [(0.0, 0), (0.5, 10), (1.0, 20), (1.5, 60), (2.0, 90), (3.5, 100)]
    assert most_per_s(curve) == 70


@pytest.mark.slow
def test_a_small_fleet_is_discovered_by_two_processes():
    with workers(40) as urls:
        found = measure(2, urls)
    assert found.listed_s > 0 and 0 < found.half_ready_s <= found.all_ready_s
    assert found.gone_s > 0 and found.back_s > 0 and 0 < found.most_per_s <= 40
