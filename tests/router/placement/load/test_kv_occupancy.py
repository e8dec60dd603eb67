"""How long a prompt waits for space in a worker's KV cache."""

import pytest

from router.placement.load.kv_occupancy import kv_wait_s


def test_a_prompt_that_fits_does_not_wait():
    assert kv_wait_s(400, 600, 3, 1_000, 5.0) == 0.0


def test_a_prompt_that_does_not_fit_waits_at_least_for_the_first_end():
    assert kv_wait_s(410, 600, 3, 1_000, 6.0) == pytest.approx(2.0)
    assert kv_wait_s(700, 600, 3, 1_000, 6.0) == pytest.approx(3.0)


def test_waiting_requests_go_first_and_fill_at_most_the_capacity():
    assert kv_wait_s(400, 1_000, 5, 1_000, 6.0) == pytest.approx(2.4)
    assert kv_wait_s(400, 3_000, 15, 1_000, 6.0) == pytest.approx(14.4)


@pytest.mark.parametrize(
    ("held", "requests", "capacity", "remaining_s"), [(0, 0, 100, 5.0), (500, 2, 0, 5.0), (500, 2, 100, 0.0)]
)
def test_the_kv_wait_is_zero_where_a_quantity_is_unknown(held, requests, capacity, remaining_s):
    assert kv_wait_s(400, held, requests, capacity, remaining_s) == 0.0
