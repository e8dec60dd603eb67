"""The types that a policy receives and returns. All are immutable.

The types are msgspec structs because views are built for every candidate of every request. With 64 candidates, frozen
dataclasses would cost more than the rest of a decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NewType, Protocol

import msgspec

WorkerId = NewType("WorkerId", str)
"""``host:port`` or ``host:port#rank``: one candidate (an endpoint, or one data-parallel rank of it)."""


class Residency(StrEnum):
    """How far the cached tokens of a candidate can be trusted."""

    EXACT = "exact"
    APPROXIMATE = "approximate"
    UNKNOWN = "unknown"
    OFF = "off"


class RequestView(msgspec.Struct, frozen=True):
    """The request to place.

    `block_hashes` are the chained hashes of the prompt's full blocks of `block_tokens` tokens each. Equal hashes mean
    equal prefixes. They are empty when the prompt has no identity. `max_tokens` is the client's output limit, if it
    set one. `decode_s` is the recent mean decode time of requests of this kind, 0 until it is known. `waited_s` is the
    time since the request arrived.
    """

    id: str
    model: str
    prompt_tokens: int
    block_tokens: int
    block_hashes: Sequence[int]
    session_id: str | None = None
    max_tokens: int | None = None
    priority: int = 0
    decode_s: float = 0.0
    waited_s: float = 0.0


class WorkerView(msgspec.Struct, frozen=True, gc=False):
    """One candidate as the router knows it at the time of the decision. Times are in seconds, sizes in tokens.

    Load: `queued_tokens` (P) are the uncached prompt tokens that are reserved on the worker and not yet prefilled.
    `running_requests` (B) counts all reserved requests; `queued_requests` counts the requests whose prefill waits or
    runs. `kv_tokens` (K) is the context that the reserved requests hold; a shared prefix counts once.
    `kv_capacity_tokens` is the size of the KV cache, 0 if unknown.

    Cache: `cached_tokens` of the prompt are in the worker's fastest tier; at least the prompt's last token is
    uncached. `uncached_tokens` is the rest of the prompt. `idle_tokens` is idle context: prompts of ended turns whose
    sessions will probably return. Each counts for as long as its prefill would take, and only while keeping such
    contexts has saved more than it cost. If the prompt does not fit beside the idle context, its own part of it that
    is no longer cached is left out.

    Estimates: `queue_wait_s` is the wait for the prefills before this prompt. `prefill_s` is the time of its own
    prefill, and `error_s` the standard error of their sum. **Until `learned` is True, these numbers are prompt tokens
    and not seconds**, and rank workers by queued and uncached tokens. The suffix `_s` is right only after the speed of
    any worker is known. `utilisation` is the share of time that the worker spends on prefills, 0 to 0.97.

    `kv_wait_s` is the further wait until the KV cache has space for the prompt beside the context of running requests.
    It is 0 if the prompt fits, and until decode times are known. `decode_externality_s` is the time by which this
    request and the streams that run on the worker lengthen each other, summed. It is 0 until the worker's decode steps
    are known.

    `labels` come from the worker's configuration.
    """

    id: WorkerId
    residency: Residency
    cached_tokens: int
    uncached_tokens: int
    queued_tokens: int
    running_requests: int
    kv_tokens: int
    kv_capacity_tokens: int
    queue_wait_s: float
    prefill_s: float
    utilisation: float
    learned: bool = False
    error_s: float = 0.0
    cached_tokens_by_tier: Mapping[str, int] | None = None
    queued_requests: int = 0
    decode_externality_s: float = 0.0
    kv_wait_s: float = 0.0
    labels: Mapping[str, str] = {}
    idle_tokens: int = 0


class FleetView(msgspec.Struct, frozen=True):
    """The candidates for one request: never empty, in the order in which they joined."""

    now_s: float
    workers: tuple[WorkerView, ...]


class Decision(msgspec.Struct, frozen=True):
    """A ranking. `ranked` holds every candidate, best first. The first is the choice; the others are the alternatives.

    `costs` are the costs of the workers in `ranked`, in the policy's own `unit`; lower is better. It is empty for
    policies without a cost. `terms` holds the named parts of each worker's cost.

    With `hold_s` above 0 the request waits in the gateway. The policy is asked again after that time or, with
    `until_prefills_done`, as soon as the first worker of `ranked` has no prefill left. A request that cannot wait is
    placed at once: an earlier attempt has failed, or the limit of held requests is reached.
    """

    ranked: tuple[WorkerId, ...]
    reason: str
    costs: tuple[float, ...] = ()
    unit: str = ""
    terms: Mapping[WorkerId, Mapping[str, float]] = msgspec.field(default_factory=dict)
    hold_s: float = 0.0
    until_prefills_done: bool = True


class LifecycleEventKind(StrEnum):
    """The lifecycle events that a stateful policy can follow."""

    RESERVED = "reserved"
    FIRST_TOKEN = "first_token"
    FINISHED = "finished"
    FAILED = "failed"


class LifecycleEvent(msgspec.Struct, frozen=True):
    """An event in the life of `request` on `worker` at `now_s`.

    `cached_tokens` is the number that a finished response reported. `placed` and `fleet` are set for `RESERVED`: the
    views of the chosen worker and of all candidates at the decision, without the new request.
    """

    kind: LifecycleEventKind
    request: RequestView
    worker: WorkerId
    now_s: float
    cached_tokens: int | None = None
    placed: WorkerView | None = None
    fleet: FleetView | None = None


class Policy(Protocol):
    """A routing rule. Each process has one object, built from its parameters and a seeded `random.Random`.

    `decide` must not change the policy's state, because `explain` calls it, too. It may draw from the random source.
    State changes in `observe`, which is optional and receives every lifecycle event. The optional `statistics()`
    returns a dict of JSON values for operators. The optional class attribute `terms` describes each term of the cost
    in one line.
    """

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Rank every candidate of `fleet` for `request`."""
        ...
