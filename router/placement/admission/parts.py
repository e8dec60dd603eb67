"""Which tenants of a class run more than their part of the fleet beside others.

A tenant is beyond its part while it runs more than a few requests, more than twice as much as another one on average,
and others were served lately. Then it leaves room for their next requests, since nobody is moved who runs.
"""

from __future__ import annotations

from math import inf

from router.placement.admission.credit import Credits

TIMES = 2.0
"""How much more than another tenant one may run: short peaks of small tenants are no reason to limit them."""
LATELY_S = 30.0


class Parts:
    """The running requests of each tenant, in charged seconds per weight. Credits `of` a class know a usual charge."""

    def __init__(self, of: Credits) -> None:
        self._credits = of
        self._running: dict[str, tuple[int, float]] = {}
        self._all_s = 0.0
        self._latest = ""
        """The tenant that was served last, and when it was and when another one was."""
        self._latest_s = self._before_s = -inf

    def began(self, tenant: str, seconds: float, now_s: float) -> None:
        if tenant != self._latest:
            self._latest, self._before_s = tenant, self._latest_s
        self._latest_s = now_s
        requests, own_s = self._running.get(tenant, (0, 0.0))
        self._running[tenant] = requests + 1, own_s + seconds
        self._all_s += seconds

    def ended(self, tenant: str, seconds: float) -> None:
        requests, own_s = self._running.pop(tenant)
        if requests > 1:
            self._running[tenant] = requests - 1, own_s - seconds
        self._all_s = self._all_s - seconds if self._running else 0.0

    def beyond(self, tenant: str, now_s: float) -> bool:
        own_s, others = self._running.get(tenant, (0, 0.0))[1], len(self._running) - 1
        if own_s <= self._credits.quantum_s:
            return False
        if not others:
            return now_s - (self._before_s if tenant == self._latest else self._latest_s) <= LATELY_S
        return own_s * others > TIMES * (self._all_s - own_s)

    def all_beyond(self, now_s: float) -> set[str]:
        return {name for name in self._running if self.beyond(name, now_s)}
