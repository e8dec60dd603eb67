"""The fit against a naive one that keeps all observations and solves the weighted problem at once."""

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.placement.learning.forgetting_least_squares import ForgettingLeastSquares

SIZE, RIDGE = 3, 1.0
FEATURES = st.tuples(st.integers(1, 100), st.just(1), st.integers(0, 50))
OBSERVATIONS = st.lists(st.tuples(FEATURES, st.floats(0.1, 1e3)), min_size=1, max_size=12)


class Naive:
    """All observations, with the weights that they had when they came."""

    def __init__(self, forgetting):
        self.forgetting, self.rows, self.values, self.weights = forgetting, [], [], []

    def observe(self, features, value, expected):
        expected = expected if expected > 0.0 else value
        self.rows.append(features)
        self.values.append(value)
        self.weights.append(1.0 / (expected * max(expected, value)))

    def equations(self):
        ages = np.arange(len(self.rows))[::-1]
        weights = np.array(self.weights) * self.forgetting**ages
        rows = np.array(self.rows)
        return rows.T @ (weights[:, np.newaxis] * rows), rows.T @ (weights * np.array(self.values))

    def solution(self):
        """Return the least non-negative solution, and the loss, by trying every set of coefficients above 0.

        The ridge is on the diagonal of the moments, but for the first coefficient.
        """
        moments, products = self.equations()
        total = (self.forgetting ** np.arange(len(self.rows))).sum()
        moments = moments + np.diag(np.diag(moments) * RIDGE / total * (np.arange(SIZE) > 0))

        def loss(coefficients):
            return coefficients @ moments @ coefficients - 2.0 * products @ coefficients

        found = [np.zeros(SIZE)]
        for places in chain.from_iterable(combinations(range(SIZE), size) for size in range(1, SIZE + 1)):
            some = list(places)
            solved = np.zeros(SIZE)
            solved[some] = np.linalg.lstsq(moments[np.ix_(some, some)], products[some], rcond=None)[0]
            if (solved >= 0.0).all():
                found.append(solved)
        return min(found, key=loss), loss


def taught(observations, forgetting, sweeps):
    fit, naive = ForgettingLeastSquares(SIZE, forgetting=forgetting, ridge=RIDGE, sweeps=sweeps), Naive(forgetting)
    for features, value in observations:
        expected = fit.predict(features)
        naive.observe(features, value, expected)
        fit.observe(features, value, expected)
    return fit, naive


@given(OBSERVATIONS, st.floats(0.8, 1.0))
def test_the_normal_equations_are_those_of_all_observations(observations, forgetting):
    fit, naive = taught(observations, forgetting, sweeps=3)
    moments, products = naive.equations()
    assert np.allclose(fit.moments, moments, rtol=1e-9)
    assert np.allclose(fit.products, products, rtol=1e-9)
    assert fit.count == len(observations)
    assert np.allclose(fit.slopes(), products - moments @ np.array(fit.coefficients), rtol=1e-6, atol=1e-9)


@given(OBSERVATIONS, st.floats(0.8, 1.0))
def test_enough_sweeps_find_the_best_non_negative_coefficients(observations, forgetting):
    fit, naive = taught(observations, forgetting, sweeps=300)
    solution, loss = naive.solution()
    assert min(fit.coefficients) >= 0.0
    assert loss(np.array(fit.coefficients)) <= loss(solution) + 1e-3 * abs(loss(solution))


@given(OBSERVATIONS, st.floats(0.8, 1.0), st.floats(0.1, 10.0))
def test_a_rescaled_fit_is_the_fit_of_rescaled_values(observations, forgetting, factor):
    fit, _ = taught(observations, forgetting, sweeps=3)
    scaled, _ = taught([(features, factor * value) for features, value in observations], forgetting, sweeps=3)
    fit.rescale(factor)
    assert fit.coefficients == pytest.approx(scaled.coefficients, rel=1e-6, abs=1e-9)
    assert np.allclose(fit.moments, scaled.moments, rtol=1e-6)
    assert np.allclose(fit.products, scaled.products, rtol=1e-6)


def test_errors_are_relative_and_at_most_one():
    fit = ForgettingLeastSquares(2, forgetting=0.5, ridge=RIDGE, sweeps=20)
    fit.observe((2.0, 1.0), 10.0, fit.predict((2.0, 1.0)))
    assert fit.errors.value == 0.0, "the first value is its own prediction"
    fit.observe((2.0, 1.0), 20.0, 10.0)
    assert fit.errors.value == pytest.approx((0.5 * 0.0 + 10.0**2 / (10.0 * 20.0)) / 1.5)
    fit.observe((2.0, 1.0), 1e9, 10.0)
    assert fit.errors.value <= 1.0


def test_what_the_data_cannot_attribute_goes_to_the_first():
    fit = ForgettingLeastSquares(2, forgetting=0.98, ridge=RIDGE, sweeps=200)
    for _ in range(20):
        features = (4.0, 1.0)
        fit.observe(features, 8.0, fit.predict(features))
    assert fit.coefficients == pytest.approx([2.0, 0.0], abs=0.01)
