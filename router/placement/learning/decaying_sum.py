from __future__ import annotations


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
