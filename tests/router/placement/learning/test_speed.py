import pytest

from router.placement.learning.speed import Speed, median_speed


def test_median_is_by_coefficient_and_optimistic():
    middle = median_speed([Speed(1, 6, 0, 2, 0.1), Speed(3, 4, 0, 1, 0.3), Speed(2, 5, 9, 3, 0.2)])
    assert middle == Speed(2, 5, 9, 2, 0.3)
    assert median_speed([Speed(1, 0, 0, 0, 0), Speed(3, 0, 0, 0, 0)]).token_s == 1


def test_errors_grow_beyond_the_observations():
    speed = Speed(1e-4, 0.01, 0.0, 0.0, 0.1, token_error_s=1e-5, reach_tokens=5_000.0)
    assert speed.error_s(2.0, 5_000) == pytest.approx(0.2)
    assert speed.error_s(2.0, 15_000) == pytest.approx(0.2 + 10_000 * 1e-5)
    assert speed.coefficients() == (1e-4, 0.01, 0.0, 0.0, 0.1, 1e-5, 5_000.0)
