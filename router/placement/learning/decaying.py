"""A mean and a sum that forget."""

from __future__ import annotations

from math import inf


class DecayingMean:
    """The mean of the latest observations.

    With each observation the weight of all earlier ones falls by the factor `forgetting`. So about the last
    1 / (1 - `forgetting`) of them count, and the first few count fully. The total weight never exceeds `most`: without
    forgetting, the first `most` observations count alike.
    """

    __slots__ = ("_forgetting", "_most", "value", "weight")

    def __init__(self, forgetting: float = 1.0, most: float = inf) -> None:
        self._forgetting = forgetting
        self._most = most
        self.value = 0.0
        """The mean; 0 before the first observation."""
        self.weight = 0.0
        """The total weight of the observations, where the latest weighs 1."""

    def observe(self, value: float) -> None:
        self.weight = min(self.weight * self._forgetting + 1.0, self._most)
        self.value += (value - self.value) / self.weight


class DecayingSum:
    """The sum of the latest additions.

    Whoever adds says which share of the earlier sum is `kept`: a constant, to forget by observations, or
    exp(-elapsed / window), to forget by time.
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, value: float, kept: float) -> None:
        self.value = self.value * kept + value
