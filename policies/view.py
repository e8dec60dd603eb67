"""What a policy sees and what it answers. Everything here is immutable.

These are msgspec structs and not dataclasses because they are built for every request, views of workers even for
every candidate: 64 frozen dataclasses cost more than the rest of a decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NewType, Protocol

import msgspec

WorkerId = NewType("WorkerId", str)
"""``host:port`` or ``host:port#rank``: one candidate (an endpoint, or one data-parallel rank of it)."""


class Residency(StrEnum):
    """How far a candidate's cached tokens can be trusted."""

    EXACT = "exact"
    APPROXIMATE = "approximate"
    UNKNOWN = "unknown"
    OFF = "off"


class RequestView(msgspec.Struct, frozen=True):
    """The request to place.

    `block_hashes` chains the prompt's full blocks of `block_tokens` tokens each (empty when the prompt has no
    identity); equal hashes mean equal prefixes. `max_tokens` is the client's output limit, if it gave one.
    `decode_s` is how long requests of its kind have been decoding of late, 0 while that is not known. `waited_s` is how
    long ago it arrived.
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
    """One candidate, as the router knows it at decision time. Times are seconds, sizes tokens.

    `cached_tokens` of the request's prompt are in the worker's fastest tier (``n - 1`` cap applied);
    `uncached_tokens` is the rest of the prompt. `queued_tokens` (P) are uncached prompt tokens booked here and not
    yet prefilled, `running_requests` (B) all booked requests, `kv_tokens` (K) the context tokens they hold, what some
    have in common once; `queued_requests` of B wait for their prefill or are in it.
    `queue_wait_s` (v) and `prefill_s` (s) are the online estimates of the wait before this prompt would start and of
    its own prefill; `utilisation` (rho) is the share of time spent prefilling, 0 to 0.97. Estimates share one unit
    across candidates but are real seconds only when `learned`; `error_s` is the standard error of
    ``queue_wait_s + prefill_s``.
    `labels` are the operator's, from the worker's configuration.
    `decode_externality_s` is by how much this request's decode would lengthen the answers that stream there and they
    it, all together, 0 while that is not known: the growth of a step with the context it holds, while they run
    together. `kv_wait_s` is how long the prompt would wait, besides, until there is room for it in the KV cache beside
    the context that running requests hold: 0 where it fits, and while it is not known how long they run.
    `idle_tokens` are context besides, which answers that have ended have left in the cache for their next turns:
    each for as long as it would take to be prefilled again, and only while such contexts are worth their room. Where
    the prompt does not fit beside them, what rests of itself and is not cached any more is left out.
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
    """The candidates for one request, never empty, in a stable order (by the time they joined)."""

    now_s: float
    workers: tuple[WorkerView, ...]


class Decision(msgspec.Struct, frozen=True):
    """A ranking. `ranked` holds every candidate, best first; the first is the choice, the next ones alternatives.

    `costs` runs parallel to `ranked`, lower is better, in the policy's own unit (`unit`); empty for rules without a
    price. `terms` explains: per worker, named parts of its cost.

    `hold_s` greater than zero: not yet. The request stays in the gateway, and the policy is asked again after so many
    seconds, or, `until_prefills_done`, once the first of `ranked` has no prefill left before. Where it cannot wait (an
    earlier attempt has failed, the gateway has no room for another one that does), it is placed at once.
    """

    ranked: tuple[WorkerId, ...]
    reason: str
    costs: tuple[float, ...] = ()
    unit: str = ""
    terms: Mapping[WorkerId, Mapping[str, float]] = msgspec.field(default_factory=dict)
    hold_s: float = 0.0
    until_prefills_done: bool = True


class LifecycleEventKind(StrEnum):
    """Moments of a request's life that a stateful policy may follow."""

    RESERVED = "reserved"
    FIRST_TOKEN = "first_token"
    FINISHED = "finished"
    FAILED = "failed"


class LifecycleEvent(msgspec.Struct, frozen=True):
    """What happened to `request` on `worker` at `now_s`; `cached_tokens` as reported, once finished.

    `placed` and `fleet` come with `BOOKED`: what was known of the worker when it was chosen, the new request not
    counted, and of all those that it was chosen from.
    """

    kind: LifecycleEventKind
    request: RequestView
    worker: WorkerId
    now_s: float
    cached_tokens: int | None = None
    placed: WorkerView | None = None
    fleet: FleetView | None = None


class Policy(Protocol):
    """A rule. One object per process, built from its parameters and a seeded `random.Random`.

    `decide` must not change the policy's state (drawing from its random source is allowed): it is also called to
    explain. State follows `observe`, which is called for every edge if the policy has it. What it shows of that to
    operators is `statistics()`, if it has it: a dict of what JSON can hold.
    """

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Rank every candidate of `fleet` for `request`."""
        ...
