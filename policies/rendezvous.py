"""Consistent hashing: for each key an order of the workers that hardly changes when workers join or leave.

Rendezvous hashing (Thaler and Ravishankar 1998): every worker gets a number from its id and the key; the highest is
first. It is the limit of a hash ring with more and more points per worker, and keeps no state. With different weights,
a worker is first for a share of the keys in proportion to its weight (Schindelhauer and Schomaker 2005).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from xxhash import xxh3_64_intdigest

from policies.ranking import Terms, counts, fact_terms, ids_at, running_requests, total
from policies.view import Decision, FleetView, RequestView, WorkerId
from policies.weights import uneven_weights

_SEED_BITS = (1 << 64) - 1


def text_key(text: str) -> int:
    return xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def prefix_key(request: RequestView, prefix_tokens: int) -> int | None:
    """Return a key from the first `prefix_tokens`, in whole blocks, at least one; None without a full block."""
    hashes = request.block_hashes
    if not hashes:
        return None
    blocks = max(1, prefix_tokens // max(1, request.block_tokens))
    return hashes[min(blocks, len(hashes)) - 1]


def hash_order(
    key: int, workers: Sequence[WorkerId], hashing: int = 0, weights: Sequence[float] | None = None
) -> list[int]:
    """Return the places in `workers` in the key's order. Each value of `hashing` gives an independent order.

    `weights` are needed only if they differ.
    """
    seed = (key ^ hashing * 0x9E3779B97F4A7C15) & _SEED_BITS
    draws = [(-xxh3_64_intdigest(worker.encode(), seed), worker, place) for place, worker in enumerate(workers)]
    if weights is not None:
        arrivals = [(-log((0.5 - draw) / 2.0**64) / weights[place], worker, place) for draw, worker, place in draws]
        arrivals.sort()
        return [arrival[2] for arrival in arrivals]
    draws.sort()
    return [draw[2] for draw in draws]


def load_bound(fleet: FleetView, load_factor: float) -> float:
    """Return the number of requests that one worker may have: `load_factor` times the mean, new request included."""
    return load_factor * (total(fleet, running_requests) + 1) / len(fleet)


def bounded(key: int, fleet: FleetView, load_factor: float, owner_of: str) -> Decision:
    """Rank by the key's order, with workers above the load bound last. `owner_of` names the key in the reason."""
    bound = load_bound(fleet, load_factor)
    order = hash_order(key, fleet.ids, weights=uneven_weights(fleet))
    requests = counts(fleet, running_requests)
    within = [place for place in order if requests[place] <= bound]
    over = [place for place in order if requests[place] > bound]
    owner = order[0]
    reason = f"owner of the {owner_of}"
    if requests[owner] > bound:
        reason = f"spilled: the {owner_of}'s owner {fleet.ids[owner]} has {requests[owner]} requests, over {bound:.1f}"
    terms: Terms = {"requests": running_requests, "bound": bound}
    return Decision(ids_at(fleet, within + over), reason, terms=fact_terms(fleet, terms))
