"""What the weights of workers mean, for every rule.

* A policy sees the load of a worker divided by its weight, in relation to the highest weight of the candidates
  (`weighted`). Rules that balance load therefore give it load in proportion to its weight, as nginx's ``least_conn``
  and Envoy's weighted least request do.
* Workers that are equal otherwise take turns in proportion to their weights (`policies.least_recently_used`).
* Rules that draw or hash do so in proportion to the weights (`shuffled`, `policies.rendezvous`).

What a worker has cached and the time of the prompt's own prefill are as they are, so that a low weight makes no cache
useless.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import log

import msgspec
import numpy as np

from policies.records import UTILISATION_CAP
from policies.view import Column, FleetView, LifecycleEvent


def weighted(fleet: FleetView) -> FleetView:
    """Return the fleet as a policy counts its load; the same one if all weights are equal."""
    if fleet.equal_weights:
        return fleet
    weights = np.asarray(fleet.roster.weights, np.float64)
    arrays = fleet.columns.arrays | _loaded(fleet, weights.max() / weights)
    loaded = fleet.with_facts(None, msgspec.structs.replace(fleet.columns, arrays=arrays))
    return fleet.with_facts(loaded.workers, None) if fleet.is_small else loaded


def _loaded(fleet: FleetView, times: Column) -> dict[str, Column]:
    """Return the facts of workers with `times` their load.

    Space in the KV cache stays as it is, and so does the wait at an empty queue, which is a fixed delay of the worker.
    """
    more_tokens = np.rint(fleet.kv_tokens * (times - 1.0))
    capacity_tokens, waiting = fleet.kv_capacity_tokens, (fleet.queued_requests > 0.0) | (fleet.queued_tokens > 0.0)
    return {
        "queued_tokens": np.rint(fleet.queued_tokens * times),
        "running_requests": np.rint(fleet.running_requests * times),
        "queued_requests": np.rint(fleet.queued_requests * times),
        "kv_tokens": fleet.kv_tokens + more_tokens,
        "kv_capacity_tokens": np.where(capacity_tokens > 0.0, capacity_tokens + more_tokens, 0.0),
        "queue_wait_s": fleet.queue_wait_s * np.where(waiting, times, 1.0),
        "utilisation": np.minimum(UTILISATION_CAP, fleet.utilisation * times),
        "decode_externality_s": fleet.decode_externality_s * times,
    }


def pause(event: LifecycleEvent) -> float:
    """Return how many reservations later than others the event's worker comes to its next turn; 0 for the highest
    weight.

    With weights w of sum W, a worker has one turn in W / w.
    """
    if event.placed is None or event.fleet is None or event.fleet.equal_weights:
        return 0.0
    weights = event.fleet.roster.weights
    return sum(weights) * (1.0 / event.placed.weight - 1.0 / max(weights))


def uneven_weights(fleet: FleetView) -> Sequence[float] | None:
    """Return the weights by place; None if all are equal."""
    return None if fleet.equal_weights else fleet.roster.weights


def shuffled(fleet: FleetView, rng: random.Random) -> list[int]:
    """Return all places in a random order, each next one drawn in proportion to its weight.

    With different weights it is the race of exponential clocks (Efraimidis and Spirakis 2006).
    """
    order = list(range(len(fleet)))
    if fleet.equal_weights:
        rng.shuffle(order)
        return order
    arrivals = [-log(1.0 - rng.random()) / weight for weight in fleet.roster.weights]
    order.sort(key=arrivals.__getitem__)
    return order
