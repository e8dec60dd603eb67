from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import ClassVar

from policies.marginal_cost.terms.term import FactTerm
from policies.ranking import FactOf


class QueueWait(FactTerm):
    """The prefills that the worker will do first."""

    meanings: ClassVar[Mapping[str, str]] = {
        "queue_wait_s": "Time until the prefills queued before this prompt are done."
    }

    def __init__(self) -> None:
        self.fact: FactOf = attrgetter("queue_wait_s")
