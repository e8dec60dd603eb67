"""Credit of tenants or classes, in charged seconds.

Each name has a counter of what it was charged, divided by its weight. It has credit while its counter is below
`level`. If nobody who waits has credit, the level rises until one has: the refill of DLPM in one step. A name that
begins to wait has at most one quantum of credit, so nothing is saved while idle; its debt stays. Between two names that
always wait, charged seconds per weight differ by at most one quantum and the largest charge.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from math import inf

from router.placement.learning.decaying import DecayingMean

KEPT = 4_096
"""Names with a debt. The one that was charged longest ago is forgotten first."""
QUANTUM_CHARGES = 4.0
"""The quantum in mean charges. A larger one keeps more of a tenant's requests together, a smaller one is fairer."""
_FORGETTING = 0.99


class Credits:
    """The counters of all names that differ from a name never seen before."""

    def __init__(self) -> None:
        self.level_s = 0.0
        self._spent_s: OrderedDict[str, float] = OrderedDict()
        self._mean_s = DecayingMean(_FORGETTING)

    @property
    def quantum_s(self) -> float:
        """The quantum; any time will do before the first charge."""
        return QUANTUM_CHARGES * (self._mean_s.value or 1.0)

    def has(self, name: str) -> bool:
        return self._spent_s.get(name, -inf) < self.level_s

    def spent_s(self, name: str) -> float:
        """Return the counter of a name, which is never more than a quantum below the level."""
        return max(self._spent_s.get(name, -inf), self._least_s)

    @property
    def _least_s(self) -> float:
        return self.level_s - self.quantum_s

    def charge(self, name: str, seconds: float, weight: float = 1.0) -> None:
        """Charge a dispatched request."""
        self._mean_s.observe(seconds / weight)
        self._add(name, seconds / weight)

    def settle(self, name: str, seconds: float, weight: float = 1.0) -> None:
        """Correct a charge, once the request's length is known; negative seconds give back."""
        self._add(name, seconds / weight)

    def refill(self, waiting: Iterable[str]) -> None:
        """Raise the level if nobody of `waiting` has credit, until one has."""
        spent_s = self._spent_s
        least_s = min([spent_s.get(name, -inf) for name in waiting], default=inf)
        if self.level_s <= least_s < inf:
            self.level_s = least_s + self.quantum_s

    def _add(self, name: str, seconds: float) -> None:
        self._spent_s[name] = self.spent_s(name) + seconds
        self._spent_s.move_to_end(name)
        if len(self._spent_s) > KEPT:
            self._forget()

    def _forget(self) -> None:
        """Forget names without a debt, which are as if never seen, and the oldest ones, down to seven eighths.

        So the search is rare, however many names there are.
        """
        least_s = self._least_s
        for name in [name for name, spent_s in self._spent_s.items() if spent_s <= least_s]:
            del self._spent_s[name]
        while len(self._spent_s) > KEPT - KEPT // 8:
            self._spent_s.popitem(last=False)

    def __len__(self) -> int:
        return len(self._spent_s)
