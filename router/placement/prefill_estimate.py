"""Learn how fast one worker prefills from the times to first token of its streams.

The model follows vLLM's FCFS queue and the usual fit of prefill time. A prompt has u uncached tokens after c cached
ones and stands behind Q uncached tokens of earlier prompts. The worker's decoding requests hold S context tokens. Then
the first token comes after

    b * (Q + u) + a + d * (attention of the queue + u * (c + u / 2)) + e * S

seconds: token work, a fixed part (network, the step that is running), attention work, and the decodes that share its
steps. The coefficients b, a, d, e >= 0 are fitted per worker by least squares with forgetting. Nothing about model or
hardware is assumed. A worker's own traffic may determine a coefficient badly: short prompts say nothing about long
ones. So each coefficient is shrunk toward the fleet's median by its own standard error. A fit to noise then cannot make
a worker too expensive. For comparison, LBGR (arXiv 2601.18999) learns a per-worker bias by recursive least squares.

With forgetting alone, the fit needs about fifty requests to follow a throttled GPU, and fifty large requests take
minutes. So a test (Page 1954, `_Change`) also looks for a lasting change of speed. When the change is certain enough,
the whole fit is scaled by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, inf, log, sqrt
from typing import NamedTuple

FORGETTING = 0.98
"""Weight of the past at each observation: about the last 50 count."""
SHORTEST_S = 1e-9
"""Shorter times are ignored, because squares of much shorter ones are zero in floating point."""
ENOUGH = 8
"""Observations before a worker's own fit is used: twice the coefficients."""
RIDGE_OBSERVATIONS = 1.0
"""Ridge on the coefficients other than b, in observations: without evidence all time is token work."""
SIGNIFICANT = 2.0
"""A coefficient counts as determined from this number of standard errors above zero."""
WINDOW_S = 60.0
"""Memory of the utilisation."""
WARM_UP_S = 10.0
"""Idle time assumed before a worker's first request. Otherwise that request alone would look like saturation."""
UTILISATION_CAP = 0.97
CHANGE = log(2.0)
"""Logarithm of the change of speed to look for. Changes below 1.6-fold are left to forgetting."""
LEAST_NOISE = 0.1
"""The least standard deviation that is assumed between observed and predicted times, as a share."""
SURE = 15.0
"""Logarithm of the odds at which a worker's speed counts as changed."""
SURE_BY_ONE = 3.0
"""The most that one observation adds. So at least five observations are needed, since outliers may come in pairs."""
RATIOS_KEPT = 20
"""Observations that determine the size of a change."""
ROUNDING = 1e-9
"""A difference below this share of a sum of squares counts as a rounding error."""

Features = tuple[float, float, float, float]
"""(tokens, 1, attention, decoding context tokens): the factors of the coefficients (b, a, d, e)."""


def attention(uncached_tokens: int, cached_tokens: int) -> float:
    """Return the token pairs that a prefill of u uncached tokens after c cached ones attends to: u * (c + u / 2)."""
    return uncached_tokens * (cached_tokens + 0.5 * uncached_tokens)


@dataclass(frozen=True, slots=True)
class Speed:
    """Coefficients in seconds per token, seconds, seconds per token pair, seconds per context token.

    `relative_error` is the standard error of a predicted time to first token, as a share of it. It holds within the
    range of the observations, up to `reach_tokens`, twice their root mean square. Beyond that range the error of the
    token time (`token_error_s`) is added.
    """

    token_s: float
    fixed_s: float
    attention_s: float
    decode_s: float
    relative_error: float
    token_error_s: float = 0.0
    reach_tokens: float = 0.0

    def coefficients(self) -> tuple[float, ...]:
        """Return all seven values in the order of the fields."""
        return (
            self.token_s,
            self.fixed_s,
            self.attention_s,
            self.decode_s,
            self.relative_error,
            self.token_error_s,
            self.reach_tokens,
        )

    def error_s(self, seconds: float, tokens: float) -> float:
        """Return the standard error of a prediction of `seconds` for these tokens, queued and own.

        It approximates x' P x: the average over the observations is the relative error, and outside their range the
        error of the slope dominates.
        """
        beyond_tokens = tokens - self.reach_tokens
        error_s = self.relative_error * seconds
        return error_s if beyond_tokens <= 0.0 else error_s + self.token_error_s * beyond_tokens


class _Change:
    """Page's test in one direction (`sign`): the odds that times have recently become `CHANGE` longer or shorter.

    Each observation multiplies the odds by the ratio of its likelihoods with and without the change. The odds never
    fall below even, so observations before the change do not count against it.
    """

    __slots__ = ("_log_odds", "_ratios", "_sign")

    def __init__(self, sign: float) -> None:
        self._sign = sign
        self._log_odds = 0.0
        self._ratios: list[float] = []

    def observe(self, log_ratio: float, noise: float) -> float | None:
        """Add the logarithm of observed over predicted time. Return the change if the odds reach `SURE`, else None."""
        gain = CHANGE * (self._sign * log_ratio - 0.5 * CHANGE) / (noise * noise)
        self._log_odds += min(SURE_BY_ONE, max(-SURE_BY_ONE, gain))
        if self._log_odds <= 0.0:
            self.clear()
            return None
        self._ratios.append(log_ratio)
        del self._ratios[:-RATIOS_KEPT]
        if self._log_odds < SURE:
            return None
        return sorted(self._ratios)[len(self._ratios) // 2]

    def clear(self) -> None:
        self._log_odds = 0.0
        self._ratios.clear()


class SpeedEstimate:
    """One worker's coefficients, by weighted non-negative least squares with forgetting.

    Errors count relative to the prediction, and beyond twice the prediction only linearly. The weight is
    ``1 / (p * max(p, y))`` for prediction p and observation y. So one stalled request cannot move the fit far, but a
    lasting change can. The normal equations are solved by coordinate descent from the last solution, tokens first.
    Time that the data cannot attribute goes to b, which leaves the ranking of workers by queued plus uncached tokens
    unchanged.
    """

    __slots__ = ("_changes", "_coefficients", "_moments", "_products", "_slopes", "_variance", "_weight", "count")

    def __init__(self) -> None:
        self.count = 0
        self._changes = (_Change(1.0), _Change(-1.0))
        self._weight = 0.0
        self._coefficients = [0.0, 0.0, 0.0, 0.0]
        self._moments = [[0.0] * 4 for _ in range(4)]
        self._products = [0.0] * 4
        self._slopes = [0.0] * 4
        """Residual of the normal equations without the ridge: the direction in which the solution would move."""
        self._variance = 0.0

    def observe(self, features: Features, seconds: float, *, plain: bool = True) -> None:
        """Learn that a request with these features saw its first token after `seconds`.

        `plain` is False if the request waited for something else, too. It is then no evidence of a changed speed.
        """
        if seconds < SHORTEST_S or features[0] <= 0.0:
            return
        token_s, fixed_s, attention_s, decode_s = self._coefficients
        tokens, one, pairs, context_tokens = features
        expected_s = token_s * tokens + fixed_s * one + attention_s * pairs + decode_s * context_tokens
        if expected_s <= 0.0:
            expected_s = seconds
            self._coefficients[0] = seconds / features[0]
        if plain and self.count >= ENOUGH:
            expected_s *= self._changed(log(seconds / expected_s))
        scale = 1.0 / (expected_s * max(expected_s, seconds))
        self._weight = self._weight * FORGETTING + 1.0
        residual = (seconds - expected_s) ** 2 * scale
        self._variance += (min(residual, 1.0) - self._variance) / self._weight
        self._accumulate(features, seconds, scale)
        self.count += 1
        self._solve()
        b, a, d, e = self._coefficients
        self._slopes = [
            product - (m0 * b + m1 * a + m2 * d + m3 * e)
            for product, (m0, m1, m2, m3) in zip(self._products, self._moments, strict=True)
        ]

    def _changed(self, log_ratio: float) -> float:
        """Return the factor by which to scale the fit: 1 unless the speed counts as changed."""
        noise = max(LEAST_NOISE, sqrt(self._variance))
        for change in self._changes:
            found = change.observe(log_ratio, noise)
            if found is not None:
                return self._rescale(exp(found))
        return 1.0

    def _rescale(self, factor: float) -> float:
        """Scale all times by `factor`; errors are relative, so weights scale with its square.

        Observations at the new speed are in the fit already and are scaled, too. So the result is a few percent too
        far from the old one after many observations, and half too far after few. Forgetting corrects it.
        """
        for change in self._changes:
            change.clear()
        self._coefficients = [factor * own for own in self._coefficients]
        self._moments = [[entry / factor / factor for entry in row] for row in self._moments]
        self._products = [entry / factor for entry in self._products]
        return factor

    @property
    def tested(self) -> bool:
        """Whether there are enough observations to combine the fit with the common one."""
        return self.count >= ENOUGH

    def learned(self) -> Speed | None:
        """Return the worker's own fit; None until its observations vary enough to determine the token time."""
        if not self.tested:
            return None
        own = self._refit(None)
        return own if own.token_s >= SIGNIFICANT * own.token_error_s > 0.0 else None

    def speed(self, common: Speed | None = None) -> Speed:
        """Return the present fit, shrunk toward `common`.

        Empirical Bayes: a fit c >= k with standard error s has the weight ``1 / (1 + s^2 / (k c))`` against the common
        k. Errors are factors, hence k c. A fit of n standard errors that is all noise gives less than (1 + n^2) k.
        """
        if common is not None:
            return self._refit(common)
        b, a, d, e = self._coefficients
        return Speed(b, a, d, e, self._relative_error())

    def _relative_error(self) -> float:
        return sqrt(self._variance * 4.0 / self._weight) if self._weight else 0.0

    def _refit(self, common: Speed | None) -> Speed:
        """Shrink d and e, then b, where the evidence is weak, and attribute the time that this frees to b and a."""
        b, a, d, e = self._coefficients
        d_fit, _ = self._settled(2, d, common.attention_s if common else None)
        e_fit, _ = self._settled(3, e, common.decode_s if common else None)
        (m00, m01, m02, m03), (_, m11, m12, m13), _, _ = self._moments
        spread = m00 - m01 * m01 / m11
        own_b = b
        if spread > ROUNDING * m00:
            freed = (d - d_fit) * (m02 - m01 * m12 / m11) + (e - e_fit) * (m03 - m01 * m13 / m11)
            own_b = max(0.0, b + freed / spread)
        b_fit, b_error = self._settled(0, own_b, common.token_s) if common else (own_b, self._error(0))
        a_fit = max(0.0, a + ((b - b_fit) * m01 + (d - d_fit) * m12 + (e - e_fit) * m13) / m11)
        reach_tokens = SIGNIFICANT * sqrt(m00 / m11)
        return Speed(b_fit, a_fit, d_fit, e_fit, self._relative_error(), b_error, reach_tokens)

    def _settled(self, index: int, own: float, common: float | None) -> tuple[float, float]:
        """Return a coefficient and its standard error, shrunk toward the common coefficient.

        Without a common one, return them unchanged if the coefficient is significant, else zeros.
        """
        error = self._error(index)
        if common is None:
            return (own, error) if own >= SIGNIFICANT * error else (0.0, 0.0)
        if common <= 0.0 or error == inf:
            return common, common
        weight = 1.0 / (1.0 + error * error / (common * max(own, common)))
        return common + weight * (own - common), error * sqrt(weight)

    def _error(self, index: int) -> float:
        """Return the standard error of a coefficient, with earlier regressors eliminated.

        These are (1) for the token time, and (1, tokens) for attention and decodes. Apart from noise, the error
        includes the step to the solution without the ridge, which is the time that the ridge attributes to b.
        """
        (m00, m01, _, _), (_, m11, _, _), _, _ = self._moments
        row, slopes = self._moments[index], self._slopes
        spread, own = m00 - m01 * m01 / m11, row[index]
        information = own - row[1] * row[1] / m11
        step = slopes[index] - row[1] * slopes[1] / m11
        if index and spread > ROUNDING * m00:
            shared = (row[0] - row[1] * m01 / m11) / spread
            information -= shared * shared * spread
            step -= shared * (slopes[0] - m01 * slopes[1] / m11)
        if information <= ROUNDING * own:
            return inf
        return sqrt(self._variance / information + (step / information) ** 2)

    def _accumulate(self, features: Features, seconds: float, scale: float) -> None:
        x0, x1, x2, x3 = features
        for i, row in enumerate(self._moments):
            weighted = features[i] * scale
            row[0] = row[0] * FORGETTING + weighted * x0
            row[1] = row[1] * FORGETTING + weighted * x1
            row[2] = row[2] * FORGETTING + weighted * x2
            row[3] = row[3] * FORGETTING + weighted * x3
            self._products[i] = self._products[i] * FORGETTING + weighted * seconds

    def _solve(self) -> None:
        """Solve coefficient by coefficient, written out: this runs once per streamed answer."""
        doubt = 1.0 + RIDGE_OBSERVATIONS / self._weight
        (m00, m01, m02, m03), (_, m11, m12, m13), (_, _, m22, m23), (_, _, _, m33) = self._moments
        p0, p1, p2, p3 = self._products
        b, a, d, e = self._coefficients
        for _ in range(3):
            b = max(0.0, (p0 - m01 * a - m02 * d - m03 * e) / m00)
            a = max(0.0, (p1 - m01 * b - m12 * d - m13 * e) / (m11 * doubt))
            if m22:
                d = max(0.0, (p2 - m02 * b - m12 * a - m23 * e) / (m22 * doubt))
            if m33:
                e = max(0.0, (p3 - m03 * b - m13 * a - m23 * d) / (m33 * doubt))
        self._coefficients = [b, a, d, e]


class Work(NamedTuple):
    """Recently dispatched prefill work, weighted by its age at `at_s`. The first was dispatched at `since_s`."""

    tokens: float
    attention: float
    at_s: float
    since_s: float

    def plus(self, other: Work) -> Work:
        """Return the sum at the later of the two times."""
        at_s = max(self.at_s, other.at_s)
        kept, kept_other = exp((self.at_s - at_s) / WINDOW_S), exp((other.at_s - at_s) / WINDOW_S)
        return Work(
            self.tokens * kept + other.tokens * kept_other,
            self.attention * kept + other.attention * kept_other,
            at_s,
            min(self.since_s, other.since_s),
        )


class Utilisation:
    """The share of time that a worker spends on prefills: dispatched work, exponentially weighted over `WINDOW_S`.

    Work is kept in tokens and attention, so that the share follows the present speed estimate.
    """

    __slots__ = ("_at_s", "_attention", "_since_s", "_tokens")

    def __init__(self) -> None:
        self._tokens = 0.0
        self._attention = 0.0
        self._at_s = 0.0
        self._since_s: float | None = None

    def dispatched(self, uncached_tokens: int, attention: float, now_s: float) -> None:
        """Record that a prefill was sent to the worker."""
        if self._since_s is None:
            self._since_s = self._at_s = now_s
        kept = exp((self._at_s - now_s) / WINDOW_S)
        self._tokens = self._tokens * kept + uncached_tokens
        self._attention = self._attention * kept + attention
        self._at_s = now_s

    @property
    def work(self) -> Work | None:
        """The dispatched work; None before the first prefill."""
        return None if self._since_s is None else Work(self._tokens, self._attention, self._at_s, self._since_s)

    def share(self, speed: Speed, now_s: float, others: Work | None = None) -> float:
        """Return the utilisation, from 0 to `UTILISATION_CAP`; `others` is the work that other processes dispatched."""
        tokens, attention, at_s, since_s = self._tokens, self._attention, self._at_s, self._since_s
        if others is not None:
            work = self.work
            tokens, attention, at_s, since_s = others if work is None else work.plus(others)
        if since_s is None:
            return 0.0
        work_s = (speed.token_s * tokens + speed.attention_s * attention) * exp((at_s - now_s) / WINDOW_S)
        share = work_s / (-WINDOW_S * expm1((since_s - WARM_UP_S - now_s) / WINDOW_S))
        return share if share < UTILISATION_CAP else UTILISATION_CAP


def median_speed(speeds: list[Speed]) -> Speed:
    """Return the median of each coefficient; of two middle values the lower, so that unknown workers are tried.

    The medians of attention and decodes leave out workers where they are zero. The errors are the largest of all
    workers, the reach is the least.
    """
    return Speed(
        _middle([speed.token_s for speed in speeds]),
        _middle([speed.fixed_s for speed in speeds]),
        _middle([speed.attention_s for speed in speeds if speed.attention_s]),
        _middle([speed.decode_s for speed in speeds if speed.decode_s]),
        max([speed.relative_error for speed in speeds]),
        max([speed.token_error_s for speed in speeds]),
        min([speed.reach_tokens for speed in speeds]),
    )


def _middle(values: list[float]) -> float:
    values.sort()
    return values[(len(values) - 1) // 2] if values else 0.0
