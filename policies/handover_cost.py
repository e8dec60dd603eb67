"""The cost of computing a prompt on one worker and writing its answer on another, beside that of one worker alone; and
the cost of a worker that pulls a prefix from another one and computes the rest.

Costs are the added delay in seconds, as in `policies.marginal_cost`: of the request itself, of the prefills that come
next, and of the streams that wait for steps with a prefill. All of it is arrays: over candidates and over pairs, and
over the sources of a pull.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.view import Column, FleetView, WorkerView
from policies.wrappers.prefill_lanes import STREAM_WEIGHT

Matrix = NDArray[np.float64]
"""One row per prefill worker, one column per decode worker."""
MOST_OFF = 0.5
"""The largest share of an estimate that its standard error takes off: a worker that has seen no such prompt has the
fleet's median speed, and one that is more than twice as fast is rare. Without it, a worker that knows short prompts
alone would look free for long ones, however many of them waited there."""
FULLEST = 0.97
"""The largest share of a KV cache that counts as held: a full one has a finite price, as a busy worker has."""


class MoveCost(NamedTuple):
    """The cheapest plan that moves KV cache, as rows among senders and receivers, and what it and one worker cost.

    `tokens` move. The receiver then has the first `loaded_tokens` of the prompt, and the prefill of the rest takes
    `rest_s`, behind a queue of `queue_s`. `cost_s` is infinite if no plan is possible. `delay_s` is the part of it that
    handovers and pulls both have: all but the price of KV space.
    """

    sender: int
    receiver: int
    tokens: int
    loaded_tokens: int
    rest_s: float
    queue_s: float
    cost_s: float
    alone_s: float
    delay_s: float

    @property
    def possible(self) -> bool:
        return math.isfinite(self.cost_s)

    @property
    def pays(self) -> bool:
        return self.cost_s < self.alone_s


TERMS: Mapping[str, str] = MappingProxyType(
    {
        "queue_wait_s": "Wait for the prefills before this one.",
        "prefill_s": "Own prefill, divided by the worker's free share of time.",
        "estimate_s": "Standard error of both, at most half of them, taken off: who gets no prompts learns nothing.",
        "transfer_s": "Time in which the KV cache moves.",
        "decode_queue_s": "Time that the decode worker's queue lasts beyond the transfer.",
        "kv_wait_s": "Wait for KV space.",
        "stalled_s": "What the prefill costs the streams on its worker, weighted.",
        "decode_externality_s": "What the answer and the other streams cost each other, weighted.",
    }
)
"""The parts of the cost of one worker, and of a pair. They add up to it."""


def alone_terms(fleet: FleetView) -> dict[str, Column]:
    """Return the cost of each worker alone, by term.

    Its prefill delays later prefills (`marginal_cost`'s externality) and every stream that runs there.
    """
    return {
        **_first_token(fleet),
        "kv_wait_s": fleet.kv_wait_s,
        "stalled_s": stalled_s(fleet),
        "decode_externality_s": STREAM_WEIGHT * fleet.decode_externality_s,
    }


def pair_terms(
    prefill: FleetView,
    decode: FleetView,
    tokens_per_s: Matrix | float,
    latency_s: Matrix | float,
    streams: NDArray[np.bool_] | bool = False,
) -> dict[str, Matrix]:
    """Return the cost of each pair, by term, as matrices, or as columns or rows where a term is of one worker.

    The tokens that the decode worker lacks move at `tokens_per_s`, after `latency_s`: of each pair, or one for all. It
    then computes one token, behind the prefills that are queued there, and needs KV space for the whole prompt.
    `streams` says which prefill workers have streams, which wait for the prefill.
    """
    first = {name: term[:, np.newaxis] for name, term in _first_token(prefill).items()}
    moved_s = latency_s + decode.uncached_tokens[np.newaxis, :] / tokens_per_s
    return {
        **first,
        "transfer_s": moved_s,
        "decode_queue_s": np.maximum(decode.queue_wait_s[np.newaxis, :] - (total(first) + moved_s), 0.0),
        "kv_wait_s": decode.kv_wait_s[np.newaxis, :],
        "stalled_s": np.where(streams, stalled_s(prefill), 0.0)[:, np.newaxis],
        "decode_externality_s": STREAM_WEIGHT * decode.decode_externality_s[np.newaxis, :],
    }


def total(terms: Mapping[str, Matrix]) -> Matrix:
    cost_s, *others = terms.values()
    for term_s in others:
        cost_s = np.add(cost_s, term_s)
    return cost_s


def _first_token(fleet: FleetView) -> dict[str, Column]:
    """Return the time to the first token with what it costs later prefills, at the low end of the estimate.

    A worker that gets no long prompts learns nothing about them. Without optimism, one high estimate would last.
    """
    wait_s, own_s = fleet.queue_wait_s, fleet.prefill_s / (1.0 - fleet.utilisation)
    off_s = np.minimum(fleet.error_s, MOST_OFF * (wait_s + own_s))
    return {"queue_wait_s": wait_s, "prefill_s": own_s, "estimate_s": -off_s}


def stalled_s(fleet: FleetView) -> Column:
    cost_s: Column = STREAM_WEIGHT * low_end_s(fleet.prefill_s, fleet.error_s) * fleet.running_requests
    return cost_s


def low_end_s(seconds: Matrix | Column, error_s: Matrix | Column) -> Matrix:
    """Return estimates less their standard errors, or less `MOST_OFF` of them if that is less."""
    low_s: Matrix = seconds - np.minimum(error_s, MOST_OFF * seconds)
    return low_s


def cheapest_pair(costs_s: Matrix, decode: FleetView, alone: FleetView) -> MoveCost:
    """Return the cheapest pair. Its decode worker computes the last token of the prompt, which costs no time."""
    row, column = divmod(int(costs_s.argmin()), costs_s.shape[1])
    tokens, cost_s = int(decode.uncached_tokens[column]), float(costs_s[row, column])
    loaded_tokens = max(0, int(decode.cached_tokens[column]) + tokens - 1)
    queue_s, single_s = float(decode.queue_wait_s[column]), float(total(alone_terms(alone)).min())
    return MoveCost(row, column, tokens, loaded_tokens, 0.0, queue_s, cost_s, single_s, cost_s)


def rest_share(worker: WorkerView, loaded_tokens: Column | float) -> Column:
    """Return the share of the worker's prefill that is left after the first `loaded_tokens` of the prompt.

    It is the share of the attended pairs of tokens, the most that it can be: linear layers take a smaller share.
    """
    cached, uncached = worker.cached_tokens, worker.uncached_tokens
    tokens = cached + uncached
    rest = tokens - np.maximum(loaded_tokens, cached)
    share: Column = rest * (2.0 * tokens - rest) / max(uncached * (tokens + cached), 1)
    return share


def loaded_s(worker: WorkerView, loaded_tokens: Column | float, ready_s: Column | float) -> Column:
    """Return the cost of the worker if the first `loaded_tokens` of the prompt are in its cache after `ready_s`."""
    share = rest_share(worker, loaded_tokens)
    prefill_s, error_s = share * worker.prefill_s, share * worker.error_s
    queue_s = worker.queue_wait_s
    own_s = low_end_s(queue_s + prefill_s / (1.0 - worker.utilisation), error_s)
    first_s = np.maximum(ready_s - queue_s, 0.0) + own_s
    delayed_s = STREAM_WEIGHT * low_end_s(prefill_s, error_s) * worker.running_requests
    cost_s: Column = first_s + delayed_s + (worker.kv_wait_s + STREAM_WEIGHT * worker.decode_externality_s)
    return cost_s


def pull_cost(
    worker: WorkerView,
    own_tokens: int,
    source_tokens: Column,
    tokens_per_s: Column | float,
    latency_s: Column | float,
    alike: NDArray[np.bool_],
    decode_s: float = 0.0,
) -> MoveCost:
    """Return the cheapest pull by `worker`. Arrays are over the sources.

    Each source can serve the first `source_tokens` of the prompt. The worker has the first `own_tokens` of it in a
    slower tier of its own. What it lacks beyond both tiers moves, while its queue goes on. `alike` says from which
    sources it can read; it is no source for itself. The prompt holds KV space during its transfer, its prefill and its
    answer, which takes `decode_s`.
    """
    own_tokens = max(own_tokens, worker.cached_tokens)
    moved = np.maximum(source_tokens - own_tokens, 0.0)
    moved_s = latency_s + moved / tokens_per_s
    space_s, rest_s = space_price(worker), rest_share(worker, own_tokens + moved) * worker.prefill_s
    held_s = np.maximum(moved_s, worker.queue_wait_s) + rest_s + decode_s
    delays_s = loaded_s(worker, own_tokens + moved, moved_s)
    costs_s = np.where(alike & (moved > 0.0), delays_s + space_s * held_s, np.inf)
    source = int(costs_s.argmin())
    own_s = float(rest_share(worker, own_tokens)) * worker.prefill_s
    alone_s = float(loaded_s(worker, own_tokens, worker.queue_wait_s)) + space_s * (own_s + decode_s)
    tokens, pull_s, delay_s = int(moved[source]), float(costs_s[source]), float(delays_s[source])
    return MoveCost(
        source, 0, tokens, own_tokens + tokens, float(rest_s[source]), worker.queue_wait_s, pull_s, alone_s, delay_s
    )


def space_price(worker: WorkerView) -> float:
    """Return what each second costs others in which the prompt's uncached tokens hold KV space; 0 if its size is
    unknown.

    It is their share of the cache, over the free share: the form in which a prefill costs those that come next.
    """
    capacity_tokens = worker.kv_capacity_tokens
    if not capacity_tokens:
        return 0.0
    free_share = 1.0 - min(FULLEST, worker.kv_tokens / capacity_tokens)
    return worker.uncached_tokens / capacity_tokens / free_share
