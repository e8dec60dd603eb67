"""What most rules have in common."""

from __future__ import annotations

import random
from typing import ClassVar, Generic, TypeVar

from policies.least_recently_used import LeastRecentlyUsed
from policies.params import Params
from policies.view import LifecycleEvent

P = TypeVar("P", bound=Params)


class Rule(Generic[P]):
    """A rule that gives ties to the least recently used worker. `params` are of its `params_type`."""

    params_type: ClassVar[type[Params]] = Params

    def __init__(self, params: P, rng: random.Random) -> None:
        self._params = params
        self._last_used = LeastRecentlyUsed()

    def observe(self, event: LifecycleEvent) -> None:
        self._last_used.observe(event)
