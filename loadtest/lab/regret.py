"""Regret: the cost of a decision above that of the best one, computed after the run.

The cost of candidate w for a request placed at t is the time that its first token would have taken there:

    wait_w(t) + prefill_w(u_w, c_w)

`wait_w(t)` is the time until the last first token of the requests that had been placed on w before t. It is the
realised time: it contains what chunking, parallel decodes, preemption and jitter did to that queue, and nothing of
later requests. `prefill_w` is the profile's time, at w's true speed, for the u_w tokens of the prompt that w would not
have cached after that wait. The cached tokens come from the engine's own cache at t, not from the router's index, and
from the prompts in the queue. Without those prompts, a request that shares a sibling's prefill would be charged for a
prefill of its own.

Regret is the chosen worker's cost minus the least one. It is never negative, and one formula prices both. It is the
request's own delay. The effects on later requests, by eviction, queueing or stalls, are not part of it, and the run is
not repeated with another choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from backends.engine.profile import Profile


@dataclass(frozen=True, slots=True)
class Placed:
    """One decision: the call's name, its time, the chosen worker, and the call's own prefill time on each worker."""

    name: str
    now_s: float
    worker: int
    prefill_s: tuple[float, ...]


def regrets_s(placed: Sequence[Placed], first_token_s: Mapping[str, float]) -> dict[str, float]:
    """Return each call's regret; `placed` is in order of time.

    `first_token_s` is when a call got its first token or left. A call that is missing there counts as if it had its
    first token when it was placed.
    """
    workers = len(placed[0].prefill_s) if placed else 0
    free_s = [0.0] * workers
    regrets = {}
    for one in placed:
        costs = [max(0.0, free - one.now_s) + own for free, own in zip(free_s, one.prefill_s, strict=True)]
        regrets[one.name] = costs[one.worker] - min(costs)
        free_s[one.worker] = max(free_s[one.worker], first_token_s.get(one.name, one.now_s))
    return regrets


def prefill_s(profile: Profile, speed: float, prompt_tokens: int, cached_tokens: int) -> float:
    """Return the seconds of the prefill of the prompt's uncached tokens, alone on a worker, in chunks."""
    new = prompt_tokens - cached_tokens
    cost = profile.prefill
    pairs = new * (cached_tokens + 0.5 * new)
    steps = max(1, ceil(new / profile.max_num_batched_tokens))
    return (cost.a_ms * steps + cost.b_us * 1e-3 * new + cost.d_ns * 1e-6 * pairs) * 1e-3 / speed
