import numpy as np
import pytest

from loadtest.calibrate.least_squares import fit_relative


def fitted(features, observed, tolerance=0.02, weights=None):
    weights = np.ones(len(observed)) if weights is None else weights
    return fit_relative(np.array(features), np.array(observed), np.array(weights), tolerance)


def rows(parameters, count=60):
    features = np.random.default_rng(0).uniform(0, 10, (count, len(parameters)))
    return features, features @ np.array(parameters)


def test_exact_rows_give_the_parameters_back():
    assert fitted(*rows([2.0, 0.5, 7.0])) == pytest.approx([2.0, 0.5, 7.0])


def test_outliers_hardly_bend_the_rest():
    features, observed = rows([2.0, 5.0])
    observed[::10] *= 0.5
    assert fitted(features, observed) == pytest.approx([2.0, 5.0], rel=0.02)
    assert fitted(features, observed, 10.0) != pytest.approx([2.0, 5.0], rel=0.05)


def test_a_parameter_that_wants_to_be_negative_is_zero():
    first, second = fitted(*rows([3.0, -0.2]))
    assert second == 0.0
    assert 2.0 < first < 3.0


def test_a_parameter_that_nothing_depends_on_is_zero():
    assert fitted([[1.0, 0.0], [2.0, 0.0]], [4.0, 8.0]) == pytest.approx([4.0, 0.0])


def test_weights_decide_between_rows_that_contradict_each_other():
    assert fitted([[1.0], [1.0]], [10.0, 12.0], 10.0, [100.0, 1.0])[0] == pytest.approx(10.0, rel=0.01)
