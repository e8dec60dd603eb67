"""Least squares in relative error, without negative parameters."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress, product

import numpy as np
from numpy.typing import NDArray

_REWEIGHTINGS = 10

Floats = NDArray[np.float64]


def fit_relative(features: Floats, observed: Floats, weights: Floats, tolerance: float | None = None) -> Floats:
    """Return parameters of at least 0 so that ``features @ parameters`` fits `observed` best in relative error.

    `features` has a row per observation. An error within `tolerance` (0.02 = 2 %) counts squared, a larger one in
    proportion to its size. This is Huber's loss, by iteratively reweighted least squares. So a few rows with a cause of
    their own do not distort the fit. Without `tolerance` every error counts squared.
    """
    relative = weights / observed**2
    parameters = _solve_not_negative(features, observed, relative)
    for _ in range(0 if tolerance is None else _REWEIGHTINGS):
        errors = np.maximum(np.abs(features @ parameters / observed - 1.0), 1e-12)
        parameters = _solve_not_negative(features, observed, relative * np.minimum(1.0, tolerance / errors))
    return parameters


def relative_r2(observed: Floats, modelled: Floats) -> float:
    """Return the share of the spread of `observed` that the model explains, all errors relative to what is observed."""
    mean = np.sum(1.0 / observed) / np.sum(1.0 / observed**2)
    spread = np.sum(((observed - mean) / observed) ** 2)
    return float(1.0 - np.sum((modelled / observed - 1.0) ** 2) / spread) if spread > 0.0 else 0.0


def _solve_not_negative(features: Floats, observed: Floats, weights: Floats) -> Floats:
    """Return the weighted least-squares solution without negative parameters; an unused parameter is 0.

    It is the best of the solutions with some parameters alone that are not negative. With six parameters there are 63.
    """
    scale = np.sqrt(weights)
    matrix, target = features * scale[:, None], observed * scale
    # Features differ by many orders of magnitude: steps, tokens, tokens squared.
    norms = np.linalg.norm(matrix, axis=0)
    norms[norms == 0.0] = 1.0
    gram, wanted = (matrix / norms).T @ (matrix / norms), (matrix / norms).T @ target
    best, best_gain = np.zeros(len(norms)), 0.0
    for used in _subsets(len(norms)):
        part = np.linalg.lstsq(gram[np.ix_(used, used)], wanted[used], rcond=None)[0]
        gain = float(part @ wanted[used])  # how far the squared error falls
        if gain > best_gain and np.all(part >= 0.0):
            best, best_gain = np.zeros(len(norms)), gain
            best[used] = part
    solution: Floats = best / norms
    return solution


def _subsets(count: int) -> Iterator[list[int]]:
    for chosen in product((False, True), repeat=count):
        if any(chosen):
            yield list(compress(range(count), chosen))
