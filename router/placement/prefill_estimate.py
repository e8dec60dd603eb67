"""How long things take on one worker, learned from what its streams showed.

Model (vLLM's FCFS queue and the usual fit of prefill time): a prompt of u uncached tokens after c cached ones, behind
Q uncached tokens of earlier prompts, on a worker whose decoding requests hold S context tokens, sees its first token
after

    b * (Q + u) + a + d * (attention of the queue + u * (c + u / 2)) + e * S

seconds: token work, a fixed part (network, the step that is running), attention work, and the decodes that share its
steps. b, a, d, e >= 0 are fitted per worker by least squares with forgetting; nothing about model or hardware is
assumed. What a worker's own traffic cannot tell (short prompts say nothing of long ones) is shrunk toward the fleet's
median, each coefficient by its own standard error, so that no fit to noise prices a worker out. A neighbour
in the literature: LBGR (arXiv 2601.18999) learns a per-worker bias by recursive least squares.

Forgetting alone follows a throttled GPU over some fifty requests, which take minutes where each is large. So a lasting
change of speed is looked for besides (the test of Page 1954, `_Change`), and once it is sure, all of the fit is scaled
by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, inf, log, sqrt
from typing import NamedTuple

FORGETTING = 0.98
"""Weight of the past at each observation: about the last 50 count."""
SHORTEST_S = 1e-9
"""Shorter times are no observation; squares of much shorter ones are zero in floating point."""
ENOUGH = 8
"""Observations before a worker's own fit is used: twice the coefficients."""
RIDGE_OBSERVATIONS = 1.0
"""How many observations' worth of doubt the coefficients besides b carry: with no evidence all time is token work."""
SIGNIFICANT = 2.0
"""Standard errors from zero at which a coefficient counts as seen."""
WINDOW_S = 60.0
"""Memory of the utilisation."""
WARM_UP_S = 10.0
"""Idle time assumed before a worker's first request, or that request alone would look like saturation."""
UTILISATION_CAP = 0.97
CHANGE = log(2.0)
"""Logarithm of the change of speed that is looked for. Changes less than 1.6-fold are left to forgetting."""
LEAST_NOISE = 0.1
"""Standard deviation of observed from predicted times, as a share, that is assumed at least."""
SURE = 15.0
"""Logarithm of the odds at which a worker's speed counts as changed."""
SURE_BY_ONE = 3.0
"""How much of it one observation gives at most: five in a row is the least, since odd ones may come in pairs."""
RATIOS_KEPT = 20
"""Observations that say by how much a speed has changed."""
ROUNDING = 1e-9
"""Share of a sum of squares below which what is left of it after subtraction is rounding."""

Features = tuple[float, float, float, float]
"""(tokens, 1, attention, decoding context tokens): what the coefficients (b, a, d, e) multiply."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Coefficients in seconds per token, seconds, seconds per token pair, seconds per context token.

    `relative_error` is the standard error of a predicted time to first token, as a share of it, amid the observations
    (up to `reach_tokens`, twice their root mean square); the error of the token time tells beyond.
    """

    token_s: float
    fixed_s: float
    attention_s: float
    decode_s: float
    relative_error: float
    token_error_s: float = 0.0
    reach_tokens: float = 0.0

    def error_s(self, seconds: float, tokens: float) -> float:
        """Standard error of a prediction of `seconds` for these tokens, queued and own.

        It is x' P x: averaged over the observations, that is the relative error; extrapolated, the slope's own leads.
        """
        beyond_tokens = tokens - self.reach_tokens
        error_s = self.relative_error * seconds
        return error_s if beyond_tokens <= 0.0 else error_s + self.token_error_s * beyond_tokens


class _Change:
    """Page's test in one direction (`sign`): the odds that times have been `CHANGE` longer or shorter for a while.

    The odds grow with each observation by the ratio of its likelihoods with and without the change, and are never below
    even, so that what was before the change does not count.
    """

    __slots__ = ("_log_odds", "_ratios", "_sign")

    def __init__(self, sign: float) -> None:
        self._sign = sign
        self._log_odds = 0.0
        self._ratios: list[float] = []

    def observe(self, log_ratio: float, noise: float) -> float | None:
        """Times of which this was one observed over predicted, both as logarithms: changed by so much; None: not."""
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
        """Begin anew."""
        self._log_odds = 0.0
        self._ratios.clear()


class SpeedEstimate:
    """One worker's coefficients, by weighted non-negative least squares with forgetting.

    Errors count relative to the prediction, and beyond twofold only linearly (weight ``1 / (p * max(p, y))`` for
    prediction p and observation y), so that one stalled request cannot move the fit far and a lasting change still
    can. The normal equations are solved by coordinate descent from the last solution, tokens first: what the data
    cannot tell apart goes to b, which leaves the ranking of workers by P + u as it was.
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
        """What the solution leaves of the normal equations: where it would go on without doubts."""
        self._variance = 0.0

    def observe(self, features: Features, seconds: float, *, plain: bool = True) -> None:
        """Learn that a request with these features saw its first token after `seconds`.

        Not `plain` where something else made it wait, too: that is no sign of a change.
        """
        if seconds < SHORTEST_S or features[0] <= 0.0:
            return
        token_s, fixed_s, attention_s, decode_s = self._coefficients
        tokens, one, pairs, context_tokens = features
        predicted_s = token_s * tokens + fixed_s * one + attention_s * pairs + decode_s * context_tokens
        if predicted_s <= 0.0:
            predicted_s = seconds
            self._coefficients[0] = seconds / features[0]
        if plain and self.count >= ENOUGH:
            predicted_s *= self._changed(log(seconds / predicted_s))
        scale = 1.0 / (predicted_s * max(predicted_s, seconds))
        self._weight = self._weight * FORGETTING + 1.0
        residual = (seconds - predicted_s) ** 2 * scale
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
        """By how much all of the fit is scaled now: 1, but where a change of speed has become sure."""
        noise = max(LEAST_NOISE, sqrt(self._variance))
        for change in self._changes:
            found = change.observe(log_ratio, noise)
            if found is not None:
                return self._rescale(exp(found))
        return 1.0

    def _rescale(self, factor: float) -> float:
        """All times are `factor` of what they were; errors are relative, so weights go with its square.

        What has been seen of the new speed is in the fit already and scaled, too: that goes a few percent too far where
        much has been learned before, and half too far where little has. Forgetting takes it back.
        """
        for change in self._changes:
            change.clear()
        self._coefficients = [factor * own for own in self._coefficients]
        self._moments = [[entry / factor / factor for entry in row] for row in self._moments]
        self._products = [entry / factor for entry in self._products]
        return factor

    @property
    def tested(self) -> bool:
        """Whether there are observations enough for the fit to count, beside what the fleet knows."""
        return self.count >= ENOUGH

    def learned(self) -> Speed | None:
        """The worker's own fit; None until its observations differ enough in tokens to tell the time of one."""
        if not self.tested:
            return None
        own = self._refit(None)
        return own if own.token_s >= SIGNIFICANT * own.token_error_s > 0.0 else None

    def speed(self, common: Speed | None = None) -> Speed:
        """The present fit, shrunk toward `common`.

        Empirical Bayes: a fit c >= k with standard error s weighs ``1 / (1 + s^2 / (k c))`` against the common k, for
        doubt is a matter of factors. One that is n standard errors, all of it noise, comes out below (1 + n^2) k.
        """
        if common is not None:
            return self._refit(common)
        b, a, d, e = self._coefficients
        return Speed(b, a, d, e, self._relative_error())

    def _relative_error(self) -> float:
        return sqrt(self._variance * 4.0 / self._weight) if self._weight else 0.0

    def _refit(self, common: Speed | None) -> Speed:
        """Change d and e, then b, as the evidence allows, and give the time that frees to what comes later: b, a."""
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
        """A coefficient and its standard error, shrunk toward the common one, or zero if there is none nor evidence."""
        error = self._error(index)
        if common is None:
            return (own, error) if own >= SIGNIFICANT * error else (0.0, 0.0)
        if common <= 0.0 or error == inf:
            return common, common
        weight = 1.0 / (1.0 + error * error / (common * max(own, common)))
        return common + weight * (own - common), error * sqrt(weight)

    def _error(self, index: int) -> float:
        """Standard error of a coefficient given those that come before it: (1), (1, tokens) for the other two.

        Besides noise it holds the step to the least squares without doubts, which is what the doubts put in b.
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
        """Written out, coefficient by coefficient: this runs once per streamed answer."""
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
    """Prefill work dispatched lately, weighted down by its age at `at_s`; the first of it was at `since_s`."""

    tokens: float
    attention: float
    at_s: float
    since_s: float

    def plus(self, other: Work) -> Work:
        """Both, at the later of the two times."""
        at_s = max(self.at_s, other.at_s)
        kept, kept_other = exp((self.at_s - at_s) / WINDOW_S), exp((other.at_s - at_s) / WINDOW_S)
        return Work(
            self.tokens * kept + other.tokens * kept_other,
            self.attention * kept + other.attention * kept_other,
            at_s,
            min(self.since_s, other.since_s),
        )


class Utilisation:
    """Share of time a worker spends on prefills: exponentially weighted over `WINDOW_S`, from what was dispatched.

    Kept in tokens and attention, so that it follows the speed estimate instead of freezing old ones in.
    """

    __slots__ = ("_at_s", "_attention", "_since_s", "_tokens")

    def __init__(self) -> None:
        self._tokens = 0.0
        self._attention = 0.0
        self._at_s = 0.0
        self._since_s: float | None = None

    def dispatched(self, uncached_tokens: int, attention: float, now_s: float) -> None:
        """A prefill was sent to the worker."""
        if self._since_s is None:
            self._since_s = self._at_s = now_s
        kept = exp((self._at_s - now_s) / WINDOW_S)
        self._tokens = self._tokens * kept + uncached_tokens
        self._attention = self._attention * kept + attention
        self._at_s = now_s

    @property
    def work(self) -> Work | None:
        """What was dispatched, None if nothing ever was."""
        return None if self._since_s is None else Work(self._tokens, self._attention, self._at_s, self._since_s)

    def share(self, speed: Speed, now_s: float, others: Work | None = None) -> float:
        """rho, from 0 to `UTILISATION_CAP`; `others` is what other processes dispatched."""
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
    """Coefficient by coefficient, the lower one of two: optimism is what gets an unknown worker tried. Attention and
    decodes by those who saw them cost something. Its errors are the largest of theirs,
    its reach the least."""
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
