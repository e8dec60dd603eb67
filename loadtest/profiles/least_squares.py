"""Small weighted least squares with parameters that cannot be negative, robust against outliers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

_REWEIGHTINGS = 10


@dataclass(frozen=True, slots=True)
class Row:
    """One observation: ``sum(features * parameters)`` should be `observed`; errors are relative to it."""

    features: Sequence[float]
    observed: float
    weight: float = 1.0


def fit_relative(rows: Sequence[Row], tolerance: float) -> list[float]:
    """Return parameters of at least 0 that fit `rows` best in relative error.

    An error within `tolerance` (0.02 = 2 %) counts squared, a larger one in proportion to its size. This is Huber's
    loss, by iteratively reweighted least squares. So a few rows with a cause of their own do not distort the fit.
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
    """Return the absolute error of one row, as a share of the observed value."""
    return abs(sum(f * p for f, p in zip(row.features, parameters, strict=True)) / row.observed - 1.0)


def _solve_not_negative(rows: Sequence[Row], weights: Sequence[float]) -> list[float]:
    """Return the weighted least-squares solution without negative parameters; an unused parameter is 0."""
    scale = np.sqrt(np.array(weights))
    matrix = np.array([row.features for row in rows]) * scale[:, None]
    # Features differ by many orders of magnitude (steps, tokens, tokens squared), but `nnls` has one tolerance for all.
    norms = np.linalg.norm(matrix, axis=0)
    norms[norms == 0.0] = 1.0
    solution, _ = nnls(matrix / norms, np.array([row.observed for row in rows]) * scale)
    return [float(value) for value in solution / norms]
