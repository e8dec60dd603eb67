import random

import pytest

from loadtest.profiles.fit import Row, fit_relative, relative_error


def rows(parameters, count=60, seed=0):
    rng = random.Random(seed)
    for _ in range(count):
        features = [rng.uniform(0, 10) for _ in parameters]
        yield Row(features, sum(f * p for f, p in zip(features, parameters, strict=True)))


def test_exact_rows_give_the_parameters_back():
    assert fit_relative(list(rows([2.0, 0.5, 7.0])), 0.02) == pytest.approx([2.0, 0.5, 7.0])


def test_outliers_hardly_bend_the_rest():
    spoilt = [Row(r.features, r.observed * (0.5 if n % 10 == 0 else 1.0)) for n, r in enumerate(rows([2.0, 5.0]))]
    assert fit_relative(spoilt, 0.02) == pytest.approx([2.0, 5.0], rel=0.02)
    assert fit_relative(spoilt, 10.0) != pytest.approx([2.0, 5.0], rel=0.05)


def test_a_parameter_that_wants_to_be_negative_is_zero():
    fitted = fit_relative(list(rows([3.0, -0.2])), 0.02)
    assert fitted[1] == 0.0
    assert 2.0 < fitted[0] < 3.0


def test_a_parameter_that_nothing_depends_on_is_zero():
    assert fit_relative([Row([1.0, 0.0], 4.0), Row([2.0, 0.0], 8.0)], 0.02) == pytest.approx([4.0, 0.0])


def test_weights_decide_between_rows_that_contradict_each_other():
    fitted = fit_relative([Row([1.0], 10.0, 100.0), Row([1.0], 12.0, 1.0)], 10.0)
    assert fitted[0] == pytest.approx(10.0, rel=0.01)


def test_the_error_of_a_row_is_relative():
    assert relative_error(Row([1.0, 2.0], 10.0), [3.0, 4.0]) == pytest.approx(0.1)
