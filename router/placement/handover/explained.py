"""Why two workers would share a request, or why one would serve it: the best pairs and workers, with their costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from policies.handover_cost import Matrix, alone_terms, total
from policies.view import FleetView, WorkerId

SHOWN = 5
"""Pairs and workers that an explanation has."""


class ExplainedPair(NamedTuple):
    """The cost in seconds of one pair, and its terms."""

    prefill: WorkerId
    decode: WorkerId
    cost_s: float
    terms: Mapping[str, float]


class ExplainedWorker(NamedTuple):
    """The cost in seconds of one worker for the whole request, and its terms."""

    worker: WorkerId
    cost_s: float
    terms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ExplainedHandover:
    """The best pairs and the best single workers, best first. `pays`: the first pair would get the request."""

    pays: bool
    reason: str
    pairs: tuple[ExplainedPair, ...] = ()
    alone: tuple[ExplainedWorker, ...] = ()


def explained(
    senders: FleetView, receivers: FleetView, singles: FleetView, terms: Mapping[str, Matrix], costs_s: Matrix
) -> ExplainedHandover:
    """Return the explanation of a comparison.

    `costs_s` are those of the pairs, infinite where a pair is not possible, and `terms` are their parts.
    """
    pairs = tuple(
        ExplainedPair(senders.ids[row], receivers.ids[column], float(costs_s[row, column]), _at(terms, costs_s, place))
        for place in _least(costs_s)
        for row, column in (place,)
    )
    alone = alone_explained(singles)
    if not pairs:
        return ExplainedHandover(False, "no two ready workers understand each other's KV cache", (), alone)
    pays = not alone or pairs[0].cost_s < alone[0].cost_s
    cheaper = "a pair costs less than one worker" if pays else "one worker costs no more than the best pair"
    return ExplainedHandover(pays, cheaper, pairs, alone)


def alone_explained(singles: FleetView) -> tuple[ExplainedWorker, ...]:
    terms = alone_terms(singles)
    costs_s = total(terms)[np.newaxis, :]
    return tuple(
        ExplainedWorker(singles.ids[place[1]], float(costs_s[place]), _at(terms, costs_s, place))
        for place in _least(costs_s)
    )


def _at(terms: Mapping[str, Matrix], costs_s: Matrix, place: tuple[int, int]) -> dict[str, float]:
    return {name: float(np.broadcast_to(term, costs_s.shape)[place]) for name, term in terms.items()}


def _least(costs_s: Matrix) -> list[tuple[int, int]]:
    flat = costs_s.ravel()
    few = np.argpartition(flat, SHOWN - 1)[:SHOWN] if len(flat) > SHOWN else np.arange(len(flat))
    ordered = few[np.argsort(flat[few], kind="stable")]
    return [divmod(int(place), costs_s.shape[1]) for place in ordered if np.isfinite(flat[place])]
