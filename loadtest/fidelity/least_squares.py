"""Small weighted least squares with parameters that cannot be negative, robust against outliers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_REWEIGHTINGS = 10


@dataclass(frozen=True, slots=True)
class Row:
    """One observation: ``sum(features * parameters)`` should be `observed`; errors count relative to it."""

    features: Sequence[float]
    observed: float
    weight: float = 1.0


def fit_relative(rows: Sequence[Row], tolerance: float) -> list[float]:
    """Parameters of at least 0 that fit `rows` best in relative error.

    An error within `tolerance` (0.02 = 2 %) counts squared, a larger one in proportion to its size (Huber's loss,
    by iteratively reweighted least squares), so that a few rows with a cause of their own do not bend the rest.
    """
    weights = [row.weight / row.observed**2 for row in rows]
    parameters = _solve_not_negative(rows, weights)
    for _ in range(_REWEIGHTINGS):
        damped = [
            weight * min(1.0, tolerance / max(relative_error(row, parameters), 1e-12))
            for row, weight in zip(rows, weights, strict=True)
        ]
        parameters = _solve_not_negative(rows, damped)
    return parameters


def relative_error(row: Row, parameters: Sequence[float]) -> float:
    """Absolute error of one row, as a share of what was observed."""
    return abs(sum(f * p for f, p in zip(row.features, parameters, strict=True)) / row.observed - 1.0)


def _solve_not_negative(rows: Sequence[Row], weights: Sequence[float]) -> list[float]:
    """Least squares; the most negative parameter is set to 0 until none is left."""
    count = len(rows[0].features)
    active = list(range(count))
    while True:
        solution = _solve(*_normal_equations(rows, weights, active))
        lowest, index = min(zip(solution, active, strict=True))
        if lowest >= 0.0 or len(active) == 1:
            parameters = [0.0] * count
            for place, value in zip(active, solution, strict=True):
                parameters[place] = max(0.0, value)
            return parameters
        active.remove(index)


def _normal_equations(
    rows: Sequence[Row], weights: Sequence[float], active: Sequence[int]
) -> tuple[list[list[float]], list[float]]:
    matrix = [[0.0] * len(active) for _ in active]
    right = [0.0] * len(active)
    for row, weight in zip(rows, weights, strict=True):
        features = [row.features[index] for index in active]
        for place, feature in enumerate(features):
            scaled = weight * feature
            right[place] += scaled * row.observed
            line = matrix[place]
            for other, value in enumerate(features):
                line[other] += scaled * value
    return matrix, right


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss-Jordan elimination with pivoting; a parameter that nothing depends on is 0."""
    size = len(right)
    lines = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda line: abs(lines[line][column]))
        lines[column], lines[pivot] = lines[pivot], lines[column]
        if not lines[column][column]:
            continue
        for other in range(size):
            if other != column:
                factor = lines[other][column] / lines[column][column]
                lines[other] = [x - factor * y for x, y in zip(lines[other], lines[column], strict=True)]
    return [lines[n][size] / lines[n][n] if lines[n][n] else 0.0 for n in range(size)]
