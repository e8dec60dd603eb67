"""The default rule without one of its parts: a variant is the rule's text and what is replaced in the source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

from policies.marginal_cost import rule, ties
from policies.marginal_cost.terms import prefill
from policies.marginal_cost.terms.decode_externality import DecodeExternality
from policies.marginal_cost.terms.hot_prefix import HotPrefix
from policies.marginal_cost.terms.kv_wait import KvWait
from policies.marginal_cost.terms.term import Term
from policies.ranking import Facts, Value
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


def _prefill(of: Facts) -> Value:
    return of.prefill_s


def _without(term: type[Term]) -> Variant:
    return Variant(patches=((term, "price", lambda *_: ()),))


FITS: tuple[Patch, ...] = ((ties, "fits", _fits), (ties, "columns_fit", _columns_fit))

VARIANTS: Mapping[str, Variant] = {
    WHOLE: Variant(),
    "hot-prefix price": _without(HotPrefix),
    "least recently used among equals": Variant(patches=((rule, "LeastRecentlyUsed", NeverUsed),)),
    "KV space among equals": Variant(patches=FITS),
    "standard errors as ties": Variant(patches=((ties, "_equals", _equal_costs),)),
    "KV wait": _without(KvWait),
    "prefill externality": Variant(patches=((prefill, "with_externality", _prefill),)),
    "decode externality": _without(DecodeExternality),
    "prefill lanes": Variant("marginal_cost:lanes=false"),
    "hold for prefills": Variant("marginal_cost:hold.prefills=0"),
    "hold for KV space": Variant("marginal_cost:hold.kv_space=0"),
}
"""By the name of the part that is left out, first suspects first."""
FIRST = 4
"""The number of variants that are played before the others: the whole rule and the first suspects."""


def replaceable() -> bool:
    """Return whether the rule runs from source; a compiled module calls its own functions without looking them up."""
    return all(str(module.__file__).endswith(".py") for module in (rule, ties))
