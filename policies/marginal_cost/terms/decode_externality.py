from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from policies.marginal_cost.terms.term import FactTerm
from policies.ranking import FactOf, Facts, Value


class DecodeExternality(FactTerm):
    """The time by which this request's decode and the running streams lengthen each other, times `stream_weight`.

    Each context token adds a learned time to every decode step (`router.placement.learning.decode_step_time`). These
    seconds are spread over hundreds of tokens. Services allow an answer of some hundred tokens about ten times the time
    of its first token (MLPerf for an 8B model: 2 s, and 100 ms for each token).
    """

    meanings: ClassVar[Mapping[str, str]] = {
        "decode_externality_s": "Delay that this request's decode causes to the streams on the worker, weighted."
    }

    def __init__(self, stream_weight: float) -> None:
        def weighted(of: Facts) -> Value:
            return stream_weight * of.decode_externality_s

        self.fact: FactOf = weighted
