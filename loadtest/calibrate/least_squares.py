"""Least squares in relative error, without negative parameters."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress, product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def fit_relative(features: Floats, observed: Floats) -> Floats:
    """Return parameters of at least 0 so that ``features @ parameters`` fits `observed` best in relative error.

    `features` has a row per observation. The solution is the best of those with some parameters alone that are not
    negative; an unused parameter is 0.
    """
    matrix = features / observed[:, None]
    # Features differ by many orders of magnitude: steps, tokens, tokens squared.
    norms = np.linalg.norm(matrix, axis=0)
    norms[norms == 0.0] = 1.0
    matrix = matrix / norms
    best, best_gain = np.zeros(len(norms)), 0.0
    for used in _subsets(len(norms)):
        part = np.linalg.lstsq(matrix[:, used], np.ones(len(observed)), rcond=None)[0]
        gain = float(part @ matrix[:, used].sum(axis=0))  # how far the squared error falls
        if gain > best_gain and np.all(part >= 0.0):
            best, best_gain = np.zeros(len(norms)), gain
            best[used] = part
    solution: Floats = best / norms
    return solution


def relative_r2(observed: Floats, modelled: Floats) -> float:
    """Return the share of the spread of `observed` that the model explains, all errors relative to what is observed."""
    mean = np.sum(1.0 / observed) / np.sum(1.0 / observed**2)
    spread = np.sum(((observed - mean) / observed) ** 2)
    return float(1.0 - np.sum((modelled / observed - 1.0) ** 2) / spread) if spread > 0.0 else 0.0


def _subsets(count: int) -> Iterator[list[int]]:
    for chosen in product((False, True), repeat=count):
        if any(chosen):
            yield list(compress(range(count), chosen))
