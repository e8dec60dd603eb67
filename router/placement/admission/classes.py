"""Classes of requests, and what one request claims."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class RequestClass:
    """How requests of one class are treated while the fleet is full.

    `share` is the weight of the class against other classes that wait; 0: it runs only on headroom that others leave.
    `floor` is the part of each worker's headroom and KV cache that other classes leave free for it. `ttft_s` and
    `tpot_s` are its service level: others do not go where they would lift the inter-token time above `tpot_s`. A
    request is refused if it would wait longer than `max_wait_s`. A class with share 0 whose first request has waited
    for `starvation_s` gets a small share. With `preemptible` its requests give way although their answer has begun.
    """

    name: str
    share: float = 1.0
    floor: float = 0.0
    ttft_s: float | None = None
    tpot_s: float | None = None
    max_wait_s: float | None = None
    starvation_s: float = 120.0
    preemptible: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """One request's class and its tenant with a weight.

    `ttft_s` is the time to first token that it asks for; it orders the request. `ttl_s` is its own limit of the wait.
    `begun`: its client has part of the answer, so that it is never refused.
    """

    of: RequestClass
    tenant: str = ""
    weight: float = 1.0
    ttft_s: float | None = None
    ttl_s: float | None = None
    begun: bool = False

    @property
    def due_after_s(self) -> float:
        """The time after arrival at which the first token is due; infinite without a service level."""
        asked_s = self.of.ttft_s if self.ttft_s is None else self.ttft_s
        return inf if asked_s is None else asked_s

    @property
    def longest_wait_s(self) -> float:
        """The longest time to first token before the request is refused; infinite if it is never refused."""
        longest_s = inf if self.begun or self.of.max_wait_s is None else self.of.max_wait_s
        return longest_s if self.begun or self.ttl_s is None else min(longest_s, self.ttl_s)
