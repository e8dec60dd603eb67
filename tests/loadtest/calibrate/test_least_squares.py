import numpy as np
import pytest

from loadtest.calibrate.least_squares import fit_relative, relative_r2


def rows(parameters, count=60):
    features = np.random.default_rng(0).uniform(0, 10, (count, len(parameters)))
    return features, features @ np.array(parameters)


def test_exact_rows_give_the_parameters_back():
    assert fit_relative(*rows([2.0, 0.5, 7.0])) == pytest.approx([2.0, 0.5, 7.0])


def test_errors_count_in_proportion_to_what_is_observed():
    """A row of 10 ms that is 10 % off weighs as much as one of 1,000 ms."""
    fitted = fit_relative(np.array([[1.0], [100.0]]), np.array([11.0, 1_000.0]))[0]
    assert fitted == pytest.approx((1 / 11 + 1 / 10) / (1 / 121 + 1 / 100))


def test_a_parameter_that_wants_to_be_negative_is_zero():
    features, observed = rows([3.0, -0.2])
    kept = observed > 1.0
    first, second = fit_relative(features[kept], observed[kept])
    assert second == 0.0
    assert 2.0 < first < 3.0


def test_a_parameter_that_nothing_depends_on_is_zero():
    features = np.array([[1.0, 0.0], [2.0, 0.0]])
    assert fit_relative(features, np.array([4.0, 8.0])) == pytest.approx([4.0, 0.0])


def test_scales_of_many_orders_do_not_matter():
    features, observed = rows([2.0, 0.5])
    scaled = features * np.array([1e-9, 1e9])
    assert fit_relative(scaled, observed) == pytest.approx([2e9, 5e-10])


def test_r2_is_one_for_an_exact_model_and_zero_for_the_mean():
    observed = np.array([1.0, 2.0, 4.0])
    mean = np.sum(1 / observed) / np.sum(1 / observed**2)
    assert relative_r2(observed, observed) == 1.0
    assert relative_r2(observed, np.full(3, mean)) == pytest.approx(0.0)
    assert relative_r2(np.array([2.0, 2.0]), np.array([2.0, 2.0])) == 0.0
