"""A test for a lasting change of a level (Page 1954)."""

from __future__ import annotations


class ChangeDetector:
    """Watch logarithms of observed over expected values for a lasting change by `change` or more, up or down.

    Each observation multiplies the odds of a change by the ratio of its likelihoods with and without it. The odds never
    fall below even, so observations before the change do not count against it. One observation adds at most
    `sure_by_one` to the logarithm of the odds, since outliers may come in pairs. The level counts as changed when it
    reaches `sure`. The size of the change is the median of the last `kept` observations since the odds were even.
    """

    __slots__ = ("_down", "_up")

    def __init__(self, change: float, *, sure: float, sure_by_one: float, kept: int) -> None:
        self._up = _OneSided(1.0, change, sure, sure_by_one, kept)
        self._down = _OneSided(-1.0, change, sure, sure_by_one, kept)

    def observe(self, log_ratio: float, noise: float) -> float | None:
        """Add an observation whose standard deviation is `noise`. Return the change once it is certain, else None.

        A certain change clears the test, which then looks for the next one.
        """
        found = self._up.observe(log_ratio, noise)
        if found is None:
            found = self._down.observe(log_ratio, noise)
        if found is not None:
            self._up.clear()
            self._down.clear()
        return found


class _OneSided:
    """The test in one direction (`sign`)."""

    __slots__ = ("_change", "_kept", "_log_odds", "_ratios", "_sign", "_sure", "_sure_by_one")

    def __init__(self, sign: float, change: float, sure: float, sure_by_one: float, kept: int) -> None:
        self._sign = sign
        self._change = change
        self._sure = sure
        self._sure_by_one = sure_by_one
        self._kept = kept
        self._log_odds = 0.0
        self._ratios: list[float] = []

    def observe(self, log_ratio: float, noise: float) -> float | None:
        gain = self._change * (self._sign * log_ratio - 0.5 * self._change) / (noise * noise)
        self._log_odds += min(self._sure_by_one, max(-self._sure_by_one, gain))
        if self._log_odds <= 0.0:
            self.clear()
            return None
        self._ratios.append(log_ratio)
        del self._ratios[: -self._kept]
        if self._log_odds < self._sure:
            return None
        return sorted(self._ratios)[len(self._ratios) // 2]

    def clear(self) -> None:
        self._log_odds = 0.0
        self._ratios.clear()
