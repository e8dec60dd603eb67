"""Why two workers would share a request, or why one would serve it: the best pairs and workers, with their costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.handover_cost import Matrix, TurnReads, alone_s
from policies.handover_terms import alone_terms, pair_terms
from policies.view import FleetView, WorkerId

SHOWN = 5
"""Pairs and workers that an explanation has."""


class ExplainedTurn(NamedTuple):
    """A turn before, of `tokens`, that `worker` keeps. It may be read for `left_s` more."""

    worker: WorkerId
    tokens: int
    left_s: float


class ExplainedRead(NamedTuple):
    """The turn that a pair's prefill worker reads first, and what the pair costs in seconds if it computes all."""

    turn: ExplainedTurn
    computed_s: float


class ExplainedPair(NamedTuple):
    """The cost in seconds of one pair, its terms, and what it reads of a turn before."""

    prefill: WorkerId
    decode: WorkerId
    cost_s: float
    terms: Mapping[str, float]
    read: ExplainedRead | None = None


class ExplainedWorker(NamedTuple):
    """The cost in seconds of one worker for the whole request, and its terms."""

    worker: WorkerId
    cost_s: float
    terms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ExplainedHandover:
    """The best pairs and the best single workers, best first. `pays`: the first pair would get the request.

    `turns` are the kept turns that were compared, the longest first.
    """

    pays: bool
    reason: str
    pairs: tuple[ExplainedPair, ...] = ()
    alone: tuple[ExplainedWorker, ...] = ()
    turns: tuple[ExplainedTurn, ...] = ()


class ComparedReads(NamedTuple):
    """What prefill workers would read of `turns`, for which `receivers` (decode workers), and what the pairs cost if
    they read none."""

    turns: tuple[ExplainedTurn, ...]
    reads: TurnReads
    receivers: NDArray[np.bool_]
    computed_s: Matrix

    def of(self, row: int, column: int) -> ExplainedRead | None:
        turn = int(self.reads.turn[row])
        if turn < 0 or not self.receivers[column]:
            return None
        return ExplainedRead(self.turns[turn], float(self.computed_s[row, column]))


def explained(
    senders: FleetView,
    receivers: FleetView,
    singles: FleetView,
    costs_s: Matrix,
    moved_s: Matrix,
    streams: Sequence[bool] | NDArray[np.bool_],
    compared: ComparedReads | None = None,
) -> ExplainedHandover:
    """Return the explanation of a comparison.

    `costs_s` are those of the pairs, infinite where a pair is not possible, and `moved_s` their transfers. `streams`
    says which senders have streams of their own. `compared` is what they read of kept turns; None if there are none.
    """

    def pair(row: int, column: int) -> ExplainedPair:
        read, ids = None if compared is None else compared.of(row, column), (senders.ids[row], receivers.ids[column])
        reads = None if compared is None or read is None else compared.reads
        moving_s, has_streams = float(moved_s[row, column]), bool(streams[row])
        terms = pair_terms(senders, receivers, row, column, moving_s, streams=has_streams, reads=reads)
        return ExplainedPair(*ids, float(costs_s[row, column]), terms, read)

    alone, turns = alone_explained(singles), () if compared is None else compared.turns
    pairs = tuple(pair(row, column) for row, column in _least(costs_s))
    if not pairs:
        return ExplainedHandover(False, "no two ready workers understand each other's KV cache", (), alone, turns)
    pays = not alone or pairs[0].cost_s < alone[0].cost_s
    cheaper = "a pair costs less than one worker" if pays else "one worker costs no more than the best pair"
    return ExplainedHandover(pays, cheaper, pairs, alone, turns)


def alone_explained(singles: FleetView) -> tuple[ExplainedWorker, ...]:
    """Return the best workers for the whole request."""
    costs_s = alone_s(singles)
    return tuple(
        ExplainedWorker(singles.ids[place], float(costs_s[place]), alone_terms(singles, place))
        for _, place in _least(costs_s[np.newaxis, :])
    )


def _least(costs_s: Matrix) -> list[tuple[int, int]]:
    """Return the places of the least finite costs, least first."""
    flat = costs_s.ravel()
    few = np.argpartition(flat, SHOWN - 1)[:SHOWN] if len(flat) > SHOWN else np.arange(len(flat))
    ordered = few[np.argsort(flat[few], kind="stable")]
    return [divmod(int(place), costs_s.shape[1]) for place in ordered if np.isfinite(flat[place])]
