"""Weighted non-negative least squares with forgetting, solved step by step."""

from __future__ import annotations

from collections.abc import Sequence

from router.placement.learning.decaying import DecayingMean


class ForgettingLeastSquares:
    """Non-negative coefficients c of a value y = c x, for features x of which the first is above 0.

    Errors count relative to the prediction p, and beyond twice the prediction only linearly: an observation has the
    weight ``1 / (p * max(p, y))``. So one outlier cannot move the fit far, but a lasting change can. The normal
    equations are solved by coordinate descent from the last solution, first feature first. A ridge of `ridge`
    observations on all coefficients but the first attributes to the first what the data cannot attribute.

    `moments` and `products` are the normal equations; the solution reads the upper triangle. `errors` is the mean of
    the squared relative errors, each at most 1.
    """

    __slots__ = (
        "_forgetting",
        "_others",
        "_ridge",
        "_sweeps",
        "coefficients",
        "count",
        "errors",
        "moments",
        "products",
    )

    def __init__(self, features: int, *, forgetting: float, ridge: float, sweeps: int) -> None:
        self._forgetting = forgetting
        self._ridge = ridge
        self._sweeps = sweeps
        self._others = [(i, tuple(range(i)), tuple(range(i + 1, features))) for i in range(features)]
        self.count = 0
        self.coefficients = [0.0] * features
        self.moments = [[0.0] * features for _ in range(features)]
        self.products = [0.0] * features
        self.errors = DecayingMean(forgetting)

    def predict(self, features: Sequence[float]) -> float:
        predicted = 0.0
        for coefficient, feature in zip(self.coefficients, features, strict=True):
            predicted += coefficient * feature
        return predicted

    def observe(self, features: Sequence[float], value: float, expected: float) -> None:
        """Learn that `features` had the `value`, which is above 0, where `predict` returned `expected`."""
        if expected <= 0.0:
            expected = value
        scale = 1.0 / (expected * max(expected, value))
        self.errors.observe(min((value - expected) ** 2 * scale, 1.0))
        self._accumulate(features, value, scale)
        self.count += 1
        self._solve()

    def rescale(self, factor: float) -> None:
        """Multiply all values so far by `factor`. Errors are relative, so weights scale with its square."""
        self.coefficients = [factor * own for own in self.coefficients]
        self.moments = [[entry / factor / factor for entry in row] for row in self.moments]
        self.products = [entry / factor for entry in self.products]

    def slopes(self) -> list[float]:
        """Return the residual of the normal equations without the ridge: where the solution would move."""
        return [
            product - sum([entry * own for entry, own in zip(row, self.coefficients, strict=True)])
            for product, row in zip(self.products, self.moments, strict=True)
        ]

    def _accumulate(self, features: Sequence[float], value: float, scale: float) -> None:
        kept, products = self._forgetting, self.products
        for i, row in enumerate(self.moments):
            weighted = features[i] * scale
            row[:] = [entry * kept + weighted * feature for entry, feature in zip(row, features, strict=True)]
            products[i] = products[i] * kept + weighted * value

    def _solve(self) -> None:
        doubt = 1.0 + self._ridge / self.errors.weight
        coefficients, products, moments = self.coefficients, self.products, self.moments
        for _ in range(self._sweeps):
            for i, before, after in self._others:
                row, rest = moments[i], products[i]
                own = row[i] * doubt if i else row[0]
                if own > 0.0:
                    for j in before:
                        rest -= moments[j][i] * coefficients[j]
                    for j in after:
                        rest -= row[j] * coefficients[j]
                    coefficients[i] = rest / own if rest > 0.0 else 0.0
