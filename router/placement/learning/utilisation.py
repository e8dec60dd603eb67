"""The share of time that a worker spends on prefills, from the work that was dispatched to it."""

from __future__ import annotations

from math import exp, expm1
from typing import NamedTuple

from policies.records import UTILISATION_CAP
from router.placement.learning.decaying import DecayingSum
from router.placement.learning.speed import Speed

WINDOW_S = 60.0
"""Memory of the utilisation."""
WARM_UP_S = 10.0
"""Idle time assumed before a worker's first request. Otherwise that request alone would look like saturation."""


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
        self._tokens = DecayingSum()
        self._attention = DecayingSum()
        self._at_s = 0.0
        self._since_s: float | None = None

    def dispatched(self, uncached_tokens: int, attention: float, now_s: float) -> None:
        if self._since_s is None:
            self._since_s = self._at_s = now_s
        kept = exp((self._at_s - now_s) / WINDOW_S)
        self._tokens.add(uncached_tokens, kept)
        self._attention.add(attention, kept)
        self._at_s = now_s

    @property
    def work(self) -> Work | None:
        """The dispatched work; None before the first prefill."""
        if self._since_s is None:
            return None
        return Work(self._tokens.value, self._attention.value, self._at_s, self._since_s)

    def share(self, speed: Speed, now_s: float, others: Work | None = None) -> float:
        """Return the utilisation, from 0 to `UTILISATION_CAP`; `others` is the work that other processes dispatched."""
        tokens, attention, at_s, since_s = self._tokens.value, self._attention.value, self._at_s, self._since_s
        if others is not None:
            work = self.work
            tokens, attention, at_s, since_s = others if work is None else work.plus(others)
        if since_s is None:
            return 0.0
        work_s = (speed.token_s * tokens + speed.attention_s * attention) * exp((at_s - now_s) / WINDOW_S)
        share = work_s / (-WINDOW_S * expm1((since_s - WARM_UP_S - now_s) / WINDOW_S))
        return share if share < UTILISATION_CAP else UTILISATION_CAP
