"""Student's t distribution, for as many degrees of freedom and whatever level a comparison needs."""

from __future__ import annotations

from functools import cache
from math import exp, inf, isinf, lgamma, log, log1p

_TERMS = 300
_TINY = 1e-300
_EXACT = 1e-14


def above(t: float, freedom: int) -> float:
    """Probability that a t of so many degrees of freedom is greater than `t`."""
    if isinf(t):
        return 0.0 if t > 0 else 1.0
    tail = 0.5 * _beta_share(freedom / (freedom + t * t), freedom / 2, 0.5)
    return tail if t >= 0 else 1.0 - tail


@cache
def point(tail: float, freedom: int) -> float:
    """The t above which `tail` (below a half) of the probability lies."""
    low, high = 0.0, 1.0
    while above(high, freedom) > tail:
        high *= 2.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle, freedom) > tail else (low, middle)
    return high


def _beta_share(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Numerical Recipes, section 6.4)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(x, a, b) / a
    return 1.0 - front * _fraction(1.0 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1.0))
    value, before = d, inf
    for m in range(1, _TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / _away(1.0 + term * d)
            c = _away(1.0 + term / c)
            before, value = value, value * c * d
        if abs(value - before) <= _EXACT * value:
            break
    return value


def _away(value: float) -> float:
    """`value`, kept away from 0."""
    return value if abs(value) > _TINY else _TINY
