"""The price of `policies.wrappers.prefill_lanes`, where lanes are around the rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from policies.marginal_cost.terms.term import Price, Term
from policies.view import FleetView, RequestView
from policies.wrappers.prefill_lanes import TERM, PrefillLanes


class PrefillLane(Term):
    """0 without lanes."""

    meanings: ClassVar[Mapping[str, str]] = {TERM: PrefillLanes.meaning}

    def price(self, request: RequestView, fleet: FleetView) -> Price:
        return fleet.lane_price_s
