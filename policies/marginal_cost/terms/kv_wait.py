from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import ClassVar

from policies.marginal_cost.terms.term import FactTerm
from policies.ranking import FactOf


class KvWait(FactTerm):
    """Above 0 where running requests hold too much of the KV cache (`router.placement.load.kv_occupancy`)."""

    meanings: ClassVar[Mapping[str, str]] = {
        "kv_wait_s": "Time until the prompt fits in the KV cache beside the running requests."
    }

    def __init__(self) -> None:
        self.fact: FactOf = attrgetter("kv_wait_s")
