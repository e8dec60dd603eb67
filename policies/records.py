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
UTILISATION_CAP = 0.97
"""The highest utilisation: near 1 a queue grows without limit."""


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
    """The facts of one candidate at the time of the decision. Times are in seconds, sizes in tokens.

    Each fact is declared here alone. `FleetView` has every number as an array (`policies.view.FACTS`).

    A worker without a learned speed has the fleet's median speed. Where workers have different weights, a policy sees
    the load divided by them (`policies.weights`).
    """

    id: WorkerId
    residency: Residency
    cached_tokens: int
    """Tokens of the prompt in the worker's fastest tier. At least the prompt's last token is uncached."""
    uncached_tokens: int
    """Tokens of the prompt to prefill there."""
    queued_tokens: int
    """P: uncached prompt tokens that are reserved on the worker and not yet prefilled."""
    running_requests: int
    """B: all reserved requests."""
    kv_tokens: int
    """K: the context that the reserved requests hold. A shared prefix counts once."""
    kv_capacity_tokens: int
    """Size of the KV cache; 0 if unknown."""
    queue_wait_s: float
    """Wait for the prefills before this prompt."""
    prefill_s: float
    """Time of the prompt's own prefill."""
    utilisation: float
    """Share of time that the worker spends on prefills, 0 to `UTILISATION_CAP`."""
    learned: bool = False
    """Whether a worker of the fleet has learned its speed. Until then every token takes the same time, a prior, and
    `utilisation` and `error_s` are 0."""
    error_s: float = 0.0
    """Standard error of the sum of `queue_wait_s` and `prefill_s`."""
    cached_tokens_by_tier: Mapping[str, int] | None = None
    queued_requests: int = 0
    """Requests whose prefill waits or runs."""
    decode_externality_s: float = 0.0
    """Time by which this request and the streams that run on the worker lengthen each other, summed. It is 0 until the
    worker's decode steps are known."""
    kv_wait_s: float = 0.0
    """Further wait until the KV cache has space for the prompt beside the context of running requests. It is 0 if the
    prompt fits, and until decode times are known."""
    labels: Mapping[str, str] = {}
    idle_tokens: int = 0
    """Idle context: prompts of ended turns whose sessions will probably return. Each counts for as long as its prefill
    would take, and only while keeping such contexts has saved more than it cost. If the prompt does not fit beside the
    idle context, its own part of it that is no longer cached is left out."""
    weight: float = 1.0
