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
minutes. So a test (`router.placement.learning.change_detector`) also looks for a lasting change of speed. When the
change is certain enough, the whole fit is scaled by it.
"""

from __future__ import annotations

from math import exp, inf, log, sqrt

from router.placement.learning.change_detector import ChangeDetector
from router.placement.learning.forgetting_least_squares import ForgettingLeastSquares
from router.placement.learning.speed import Speed

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


class SpeedEstimate:
    """One worker's coefficients, by weighted non-negative least squares with forgetting, tokens first.

    Time that the data cannot attribute goes to b, which leaves the ranking of workers by queued plus uncached tokens
    unchanged.
    """

    __slots__ = ("_change", "_fit", "_slopes")

    def __init__(self) -> None:
        self._fit = ForgettingLeastSquares(4, forgetting=FORGETTING, ridge=RIDGE_OBSERVATIONS, sweeps=3)
        self._change = ChangeDetector(CHANGE, sure=SURE, sure_by_one=SURE_BY_ONE, kept=RATIOS_KEPT)
        self._slopes = self._fit.slopes()

    @property
    def count(self) -> int:
        return self._fit.count

    def observe(self, features: Features, seconds: float, *, plain: bool = True) -> None:
        """Learn that a request with these features saw its first token after `seconds`.

        `plain` is False if the request waited for something else, too. It is then no evidence of a changed speed.
        """
        if seconds < SHORTEST_S or features[0] <= 0.0:
            return
        expected_s = self._fit.predict(features)
        if plain and self.tested and expected_s > 0.0:
            expected_s *= self._changed(log(seconds / expected_s))
        self._fit.observe(features, seconds, expected_s)
        self._slopes = self._fit.slopes()

    def _changed(self, log_ratio: float) -> float:
        """Return the factor by which the fit was scaled: 1 unless the speed counts as changed.

        Observations at the new speed are in the fit already and are scaled, too. So the result is a few percent too
        far from the old one after many observations, and half too far after few. Forgetting corrects it.
        """
        found = self._change.observe(log_ratio, max(LEAST_NOISE, sqrt(self._fit.errors.value)))
        if found is None:
            return 1.0
        factor = exp(found)
        self._fit.rescale(factor)
        return factor

    @property
    def tested(self) -> bool:
        """Whether there are enough observations to combine the fit with the common one."""
        return self._fit.count >= ENOUGH

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
        b, a, d, e = self._fit.coefficients
        return Speed(b, a, d, e, self._relative_error())

    def _relative_error(self) -> float:
        return sqrt(self._fit.errors.value * 4.0 / self._fit.errors.weight) if self._fit.count else 0.0

    def _refit(self, common: Speed | None) -> Speed:
        """Shrink d and e, then b, where the evidence is weak, and attribute the time that this frees to b and a."""
        b, a, d, e = self._fit.coefficients
        d_fit, _ = self._settled(2, d, common.attention_s if common else None)
        e_fit, _ = self._settled(3, e, common.decode_s if common else None)
        (m00, m01, m02, m03), (_, m11, m12, m13), _, _ = self._fit.moments
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
        (m00, m01, _, _), (_, m11, _, _), _, _ = self._fit.moments
        row, slopes = self._fit.moments[index], self._slopes
        spread, own = m00 - m01 * m01 / m11, row[index]
        information = own - row[1] * row[1] / m11
        step = slopes[index] - row[1] * slopes[1] / m11
        if index and spread > ROUNDING * m00:
            shared = (row[0] - row[1] * m01 / m11) / spread
            information -= shared * shared * spread
            step -= shared * (slopes[0] - m01 * slopes[1] / m11)
        if information <= ROUNDING * own:
            return inf
        return sqrt(self._fit.errors.value / information + (step / information) ** 2)
