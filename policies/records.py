"""A request and one worker, as policies see them.

They are msgspec structs because they are made for every candidate of every request, and the decision log's lines are
decoded into them. msgspec reads their annotations, so this module is not compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NewType

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
    prefill, and `error_s` the standard error of their sum. `utilisation` is the share of time that the worker spends on
    prefills, 0 to 0.97. A worker without a learned speed has the fleet's median speed. While no worker of the fleet has
    learned one, `learned` is False: every token then takes the same time, a prior, and `utilisation` and `error_s`
    are 0.

    `kv_wait_s` is the further wait until the KV cache has space for the prompt beside the context of running requests.
    It is 0 if the prompt fits, and until decode times are known. `decode_externality_s` is the time by which this
    request and the streams that run on the worker lengthen each other, summed. It is 0 until the worker's decode steps
    are known.

    `labels` and `weight` come from the worker's configuration. Where workers have different weights, a policy sees
    the load divided by them (`policies.weights`).
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
    weight: float = 1.0
