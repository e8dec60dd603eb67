"""Decide when a prompt waits in the gateway and not in a worker's queue."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.view import FleetView, LifecycleEvent, LifecycleEventKind, RequestView, WorkerView

SHORTEST_HOLD_S = 0.005
"""A shorter hold is not worth another decision."""
_LOOKS = 4
"""Decisions per own prefill time while a prompt waits for KV space."""
_FORGETTING = 0.99
"""Weight of the past at each request: about the last hundred count."""
_MODELS_KEPT = 64


PREFILLS = "prefills"
KV_SPACE = "space in its KV cache"


class Wait(NamedTuple):
    """The longest time to hold in seconds, and the cause: prefills or KV space. 0 means: place the request now."""

    seconds: float
    awaited: str


GO = Wait(0.0, "")


class AdmissionHold:
    """Hold a prompt with a longer prefill than the mean while it would wait for more than a mean prefill, or for KV
    space.

    vLLM serves first come, first served, and a request that was sent to a worker stays there. A prompt that waits in
    the gateway loses nothing while the worker is busy, and gains three things. Shorter prompts that arrive meanwhile
    go first; as with shortest job first, this pays on average for a prompt longer than the mean. The worker is chosen
    when the queues are known and not when they are estimated. And any worker that becomes free sooner can take it.
    If no more than a mean prefill is ahead, there is little to gain. A worker whose queue of short prompts is never
    empty would also delay the prompt for nothing.

    A lack of KV space is different. A prompt that waits inside a worker takes the blocks of the next request that
    ends. It thereby evicts the context that this session needs again seconds later. The session's next turn must then
    be prefilled again, and evicts the context of another session. With more conversations than fit, caches soon hold
    little that is useful, and the fleet spends most of its time on repeated prefills: it thrashes. So a prompt that
    does not fit beside running and idle context waits until it does, while sessions whose context is cached continue.
    Operating systems do the same when the working sets of their processes do not fit together (Denning 1968).

    No prompt starves. From its arrival on, it waits at most `limit` times its own prefill time for prefills, and at
    most `kv_limit` times for KV space.
    """

    def __init__(self, limit: float, kv_limit: float) -> None:
        self._limit = limit
        self._kv_limit = kv_limit
        self._usual: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By model: weight and mean prefill time in seconds."""

    def hold(self, request: RequestView, chosen: WorkerView) -> Wait:
        """Return the longest wait before the next decision. `chosen` is the worker that would get the request now."""
        usual = self._usual.get(request.model)
        if usual is None or chosen.prefill_s < usual[1] or not chosen.learned:
            return GO
        ahead_s = chosen.queue_wait_s - usual[1] if chosen.queued_requests else 0.0
        left_s = self._limit * chosen.prefill_s - request.waited_s
        if ahead_s > 0.0 and left_s >= SHORTEST_HOLD_S:
            return Wait(min(left_s, max(ahead_s, SHORTEST_HOLD_S)), PREFILLS)
        left_s = self._kv_limit * chosen.prefill_s - request.waited_s
        if left_s >= SHORTEST_HOLD_S and not fits(chosen):
            return Wait(min(left_s, max(chosen.prefill_s / _LOOKS, SHORTEST_HOLD_S)), KV_SPACE)
        return GO

    def observe(self, event: LifecycleEvent) -> None:
        """Record the prefill time of a reservation and ignore other events."""
        placed, model = event.placed, event.request.model
        if (
            event.kind is not LifecycleEventKind.RESERVED
            or placed is None
            or not placed.learned
            or not event.request.prompt_tokens
        ):
            return
        weight, mean_s = self._usual.pop(model, (0.0, 0.0))
        weight = weight * _FORGETTING + 1.0
        self._usual[model] = weight, mean_s + (placed.prefill_s - mean_s) / weight
        if len(self._usual) > _MODELS_KEPT:
            self._usual.popitem(last=False)


def fits(view: WorkerView) -> bool:
    """Return whether the prompt fits beside running and idle context. An empty cache fits every prompt."""
    held_tokens = view.kv_tokens + view.idle_tokens
    capacity_tokens = view.kv_capacity_tokens
    return not held_tokens or not capacity_tokens or held_tokens + view.uncached_tokens <= capacity_tokens


def columns_fit(fleet: FleetView) -> NDArray[np.bool_]:
    """Return `fits` of every candidate."""
    held_tokens, capacity_tokens = fleet.kv_tokens + fleet.idle_tokens, fleet.kv_capacity_tokens
    within: NDArray[np.bool_] = held_tokens + fleet.uncached_tokens <= capacity_tokens
    within |= held_tokens == 0.0
    within |= capacity_tokens == 0.0
    return within
