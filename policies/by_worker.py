from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from policies.view import Roster, WorkerId

_ROSTERS_KEPT = 16
"""Orders of candidates for which arrays are kept: one for each model is usual."""


class ByWorker:
    """Arrays of `fields` facts in the order of a roster, read from `find` once and then kept up to date.

    `find` returns the facts of a worker. `changed` must be called whenever the facts of a worker change, and `clear`
    when those of many do.
    """

    __slots__ = ("_arrays", "_fields", "_find")

    def __init__(self, fields: int, find: Callable[[WorkerId], tuple[float, ...]]) -> None:
        self._fields = fields
        self._find = find
        self._arrays: OrderedDict[int, tuple[Roster, NDArray[np.float64]]] = OrderedDict()
        """By the identity of the roster, which is kept so that the identity stays its own."""

    def arrays(self, roster: Roster) -> NDArray[np.float64]:
        """Return an array of shape (fields, candidates). Do not change it."""
        found = self._arrays.get(id(roster))
        if found is None:
            values = [self._find(worker) for worker in roster.ids]
            found = roster, np.array(values, np.float64).T.reshape(self._fields, len(roster.ids)).copy()
            self._arrays[id(roster)] = found
            if len(self._arrays) > _ROSTERS_KEPT:
                self._arrays.popitem(last=False)
        return found[1]

    def changed(self, worker: WorkerId) -> None:
        for roster, arrays in self._arrays.values():
            place = roster.places.get(worker)
            if place is not None:
                arrays[:, place] = self._find(worker)

    def clear(self) -> None:
        self._arrays.clear()
