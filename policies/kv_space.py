"""Whether a prompt fits into a worker's KV cache."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from policies.view import FleetView, WorkerView


def fits(view: WorkerView) -> bool:
    """Return whether the prompt fits beside running and idle context. An empty cache fits every prompt."""
    held_tokens = view.kv_tokens + view.idle_tokens
    capacity_tokens = view.kv_capacity_tokens
    return not held_tokens or not capacity_tokens or held_tokens + view.uncached_tokens <= capacity_tokens


def columns_fit(fleet: FleetView) -> NDArray[np.bool_]:
    held_tokens, capacity_tokens = fleet.kv_tokens + fleet.idle_tokens, fleet.kv_capacity_tokens
    within: NDArray[np.bool_] = held_tokens + fleet.uncached_tokens <= capacity_tokens
    within |= held_tokens == 0.0
    within |= capacity_tokens == 0.0
    return within
