"""The default rule without one of its parts: a variant is the rule's text and what is replaced in the source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

from policies import marginal_cost, prefill_lanes
from policies.marginal_cost import Prices
from policies.view import FleetView, LifecycleEvent, WorkerId, WorkerView

WHOLE = "as shipped"
Patch = tuple[Any, str, Any]
"""A module or class, the name of what is replaced in it, and the replacement."""


class NeverUsed:
    """Stands for the least recent use: every worker counts as never used, so that the cheapest one wins the tie."""

    def observe(self, event: LifecycleEvent) -> None:
        """Record nothing."""

    def last(self, worker: WorkerId) -> int:
        """Return 0."""
        return 0


@dataclass(frozen=True, slots=True)
class Variant:
    """The rule without one part. Patches of ties act on fleets of less than 80 candidates, priced one by one."""

    rule: str = "marginal_cost"
    patches: tuple[Patch, ...] = ()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Run the body with the part left out."""
        with ExitStack() as stack:
            for target, name, value in self.patches:
                stack.enter_context(patch.object(target, name, value))
            yield


def _equal_costs(workers: Sequence[WorkerView], costs_s: Sequence[float], ranked: Sequence[int]) -> list[int]:
    """Return the places that tie with the first one if only equal costs tie."""
    return [place for place in ranked if costs_s[place] == costs_s[ranked[0]]]


def _fits(view: WorkerView) -> bool:
    return True


def _columns_fit(fleet: FleetView) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.ones(len(fleet), dtype=bool)


def _no_price(*_: object) -> Mapping[int, float]:
    return {}


def _without_kv_wait(view: WorkerView) -> float:
    return view.queue_wait_s + view.prefill_s / (1.0 - view.utilisation)


def _without_prefill_externality(view: WorkerView) -> float:
    return view.queue_wait_s + view.kv_wait_s + view.prefill_s


def _unweighted(workers: Sequence[WorkerView], prices: Prices) -> list[float]:
    """Return the costs without the decode externality; the lanes keep its weight."""
    return _COSTS_S(workers, prices._replace(weight=0.0))


_COSTS_S = marginal_cost._costs_s
SHARE: Patch = (prefill_lanes, "DECODE_EXTERNALITY_SHARE", 1.0)
FITS: tuple[Patch, ...] = ((marginal_cost, "fits", _fits), (marginal_cost, "columns_fit", _columns_fit))

VARIANTS: Mapping[str, Variant] = {
    WHOLE: Variant(),
    "affinity externality": Variant("marginal_cost:affinity_externality=false"),
    "half of a long prefill's stall": Variant(patches=(SHARE,)),
    "hot-prefix price": Variant(patches=((marginal_cost, "hot_prefix_prices_s", _no_price),)),
    "least recently used among equals": Variant(patches=((marginal_cost, "LeastRecentlyUsed", NeverUsed),)),
    "KV space among equals": Variant(patches=FITS),
    "standard errors as ties": Variant(patches=((marginal_cost, "_equals", _equal_costs),)),
    "KV wait": Variant(patches=((marginal_cost, "_first_token_s", _without_kv_wait),)),
    "prefill externality": Variant(patches=((marginal_cost, "_first_token_s", _without_prefill_externality),)),
    "decode externality": Variant(patches=((marginal_cost, "_costs_s", _unweighted),)),
    "prefill lanes": Variant("marginal_cost:lanes=false"),
    "hold for prefills": Variant("marginal_cost:hold.prefills=0"),
    "hold for KV space": Variant("marginal_cost:hold.kv_space=0"),
}
"""By the name of the part that is left out, first suspects first."""
FIRST = 6
"""The number of variants that are played before the others: the whole rule and the first suspects."""


def replaceable() -> bool:
    """Return whether the rule runs from source; a compiled module calls its own functions without looking them up."""
    return all(str(module.__file__).endswith(".py") for module in (marginal_cost, prefill_lanes))
