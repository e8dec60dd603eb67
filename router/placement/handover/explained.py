"""Why two workers would share a request, or why one would serve it: the best pairs and workers, with their costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.handover_cost import Matrix, alone_s
from policies.handover_terms import alone_terms, pair_terms
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
    senders: FleetView,
    receivers: FleetView,
    singles: FleetView,
    costs_s: Matrix,
    moved_s: Matrix,
    streams: Sequence[bool] | NDArray[np.bool_],
) -> ExplainedHandover:
    """Return the explanation of a comparison.

    `costs_s` are those of the pairs, infinite where a pair is not possible, and `moved_s` their transfers. `streams`
    says which senders have streams of their own.
    """

    def pair(row: int, column: int) -> ExplainedPair:
        moving_s, has_streams = float(moved_s[row, column]), bool(streams[row])
        terms = pair_terms(senders, receivers, row, column, moving_s, streams=has_streams)
        return ExplainedPair(senders.ids[row], receivers.ids[column], float(costs_s[row, column]), terms)

    alone = alone_explained(singles)
    pairs = tuple(pair(row, column) for row, column in _least(costs_s))
    if not pairs:
        return ExplainedHandover(False, "no two ready workers understand each other's KV cache", (), alone)
    pays = not alone or pairs[0].cost_s < alone[0].cost_s
    cheaper = "a pair costs less than one worker" if pays else "one worker costs no more than the best pair"
    return ExplainedHandover(pays, cheaper, pairs, alone)


def alone_explained(singles: FleetView) -> tuple[ExplainedWorker, ...]:
    costs_s = alone_s(singles)
    return tuple(
        ExplainedWorker(singles.ids[place], float(costs_s[place]), alone_terms(singles, place))
        for _, place in _least(costs_s[np.newaxis, :])
    )


def _least(costs_s: Matrix) -> list[tuple[int, int]]:
    flat = costs_s.ravel()
    few = np.argpartition(flat, SHOWN - 1)[:SHOWN] if len(flat) > SHOWN else np.arange(len(flat))
    ordered = few[np.argsort(flat[few], kind="stable")]
    return [divmod(int(place), costs_s.shape[1]) for place in ordered if np.isfinite(flat[place])]
