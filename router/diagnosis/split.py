"""What a split of a fleet into prefill and decode workers costs under a load, and what one more worker would save.

Costs are seconds of added delay per second, with the weights of `policies.handover_cost`: a second before the first
token counts 1, a second of slower streaming `STREAM_WEIGHT`. The model is a plain queueing one:

* A pool of prefill workers is an M/G/n queue, by Sakasegawa's approximation (1977).
* The workers that write answers compute the prompts that are not handed over. A gap between two tokens takes
  ``f / (1 - u - v)``: f in an idle worker, u the share of time for prefills, and v the share that the context of the
  streams adds to steps. v follows from ``gap = (f + k * S) / (1 - u)`` with Little's law for the context S.
* A stream waits for KV space as for one of the slots that the caches have for streams of the mean length.
* The share of prefill work that is handed over is the best one, since each request goes where it costs least.

Each is linear beyond `MOST_BUSY`, so that costs of an overload are finite and comparable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.records import UTILISATION_CAP
from policies.wrappers.prefill_lanes import STREAM_WEIGHT

MOST_BUSY = UTILISATION_CAP
SHARES: NDArray[np.float64] = np.linspace(0.0, 1.0, 41)
"""Shares of the prefill work that may be handed over."""

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PhaseLoad:
    """The load of a fleet, per second, and the speed of a worker under it.

    `prefill_s` and `prefill_square_s2` are the mean time of a prefill and the mean of its square. `burst` is the ratio
    of measured waits to those of Poisson arrivals. `moved_s` is the time in which the KV cache of a mean prompt moves.
    An answer has `gaps` gaps of `gap_s` on an idle worker, and a context of `context_tokens`, of which each lengthens a
    step by `step_token_s`. `kv_tokens` is the KV cache of one worker, 0 if unknown, and `ranks` its engines.
    """

    prefills_per_s: float
    prefill_s: float
    prefill_square_s2: float
    moved_s: float
    answers_per_s: float
    gaps: float
    gap_s: float
    step_token_s: float
    context_tokens: float
    kv_tokens: float = 0.0
    ranks: float = 1.0
    burst: float = 1.0

    @property
    def prefill_work(self) -> float:
        """Seconds of prefill per second."""
        return self.prefills_per_s * self.prefill_s

    @property
    def variability(self) -> float:
        """Factor of a wait for its service times: the mean square over twice the square of the mean."""
        square_s2 = self.prefill_s * self.prefill_s
        return self.burst * self.prefill_square_s2 / (2.0 * square_s2) if square_s2 > 0.0 else 0.0

    @property
    def context_work(self) -> float:
        """Seconds per second that the context of all streams adds to the steps of one engine that held them all."""
        return self.step_token_s * self.context_tokens * self.answers_per_s * self.gaps


class Split(NamedTuple):
    """Numbers of workers by role. A mixed worker takes whole requests alone."""

    prefill: int
    decode: int
    mixed: int


class Price(NamedTuple):
    """What one more worker of a role would save, in seconds per second."""

    prefill: float
    decode: float
    mixed: float


def delay_s(load: PhaseLoad, split: Split) -> float:
    """Return the added delay per second under a split, with the best share of handed over prefill work."""
    return float(_delays_s(load, np.array([split.prefill]), np.array([split.decode]), split.mixed)[0])


def wait_s(load: PhaseLoad, split: Split, share: float) -> float:
    """Return the seconds per second that prefills wait, if `share` of their work is handed over."""
    handed = np.array([[share]])
    return float(_waits_s(load, np.array([[split.prefill]]), np.array([[split.decode + split.mixed]]), handed)[0, 0])


def prices(load: PhaseLoad, split: Split) -> Price:
    now_s = delay_s(load, split)
    more = [split._replace(**{role: getattr(split, role) + 1}) for role in Split._fields]
    return Price(*[max(0.0, now_s - delay_s(load, one)) for one in more])


def best(load: PhaseLoad, split: Split) -> tuple[Split, float]:
    """Return the cheapest split of the same workers, and its cost.

    Mixed workers stay what they are, unless the fleet has no other. Of equal splits the present one wins, then the
    one with the fewest prefill workers.
    """
    alike = not split.prefill and not split.decode
    workers = split.mixed if alike else split.prefill + split.decode
    mixed = 0 if alike else split.mixed
    prefill = np.arange(workers + (mixed > 0))
    costs_s = _delays_s(load, prefill, workers - prefill, mixed)
    place, now_s = int(costs_s.argmin()), delay_s(load, split)
    if now_s <= costs_s[place]:
        return split, now_s
    return Split(place, workers - place, mixed), float(costs_s[place])


def stretched(busy: Array) -> Array:
    idle = 1.0 - MOST_BUSY
    found: Array = 1.0 / (1.0 - np.minimum(busy, MOST_BUSY)) + np.maximum(busy - MOST_BUSY, 0.0) / (idle * idle)
    return found


def queue_s(busy: Array, servers: Array, service_s: float | Array) -> Array:
    """Return the mean wait in an M/M/n queue (Sakasegawa's approximation); times `variability` for M/G/n."""
    power: Array = np.minimum(busy, 1.0) ** (np.sqrt(2.0 * (servers + 1.0)) - 1.0)
    found: Array = service_s * power / servers * stretched(busy)
    return found


def _delays_s(load: PhaseLoad, prefill: NDArray[np.int_], decode: NDArray[np.int_], mixed: int) -> Array:
    """Return the cost of each split with its best share. Mixed workers may stay idle, so that they never cost."""
    without: Array = _by_share_s(load, prefill, decode, 0).min(axis=1)
    if not mixed:
        return without
    least: Array = np.minimum(without, _by_share_s(load, prefill, decode, mixed).min(axis=1))
    return least


def _by_share_s(load: PhaseLoad, prefill: NDArray[np.int_], decode: NDArray[np.int_], mixed: int) -> Array:
    """Return the cost of each split (rows) with each share of handed over work (columns).

    Streams are spread evenly. So no more than the decode workers' part of them can be handed over.
    """
    senders, receivers = prefill[:, np.newaxis], decode[:, np.newaxis]
    writers, share = receivers + mixed, SHARES[np.newaxis, :]
    cost_s = _waits_s(load, senders, writers, share) + _streams_s(load, writers, share)
    cost_s = cost_s + share * load.prefills_per_s * load.moved_s
    possible = (share * writers <= receivers) & ((share == 0.0) | (senders > 0)) & (writers > 0)
    return np.where(possible, cost_s, np.inf)


def _waits_s(load: PhaseLoad, senders: NDArray[np.int_], writers: NDArray[np.int_], share: Array) -> Array:
    """Return the seconds per second that prefills wait in both pools."""
    ahead, own = (np.maximum(pool, 1) * load.ranks for pool in (senders, writers))
    work = load.prefill_work
    handed_s = queue_s(share * work / ahead, ahead, load.prefill_s)
    stayed_s = queue_s((1.0 - share) * work / own, own, load.prefill_s)
    total_s: Array = load.prefills_per_s * load.variability * (share * handed_s + (1.0 - share) * stayed_s)
    return total_s


def _streams_s(load: PhaseLoad, writers: NDArray[np.int_], share: Array) -> Array:
    """Return the weighted time by which streams are slower than on idle workers, and their wait for KV space."""
    engines = np.maximum(writers, 1) * load.ranks
    gap_s = load.gap_s * stretched(((1.0 - share) * load.prefill_work + load.context_work) / engines)
    slower_s: Array = STREAM_WEIGHT * load.answers_per_s * load.gaps * (gap_s - load.gap_s)
    if not load.kv_tokens or not load.context_tokens:
        return slower_s
    slots = np.maximum(writers, 1) * load.kv_tokens / load.context_tokens
    length_s = load.gaps * gap_s
    return slower_s + load.answers_per_s * queue_s(load.answers_per_s * length_s / slots, slots, length_s)
