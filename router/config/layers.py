"""Merge one source over another."""

from __future__ import annotations

from typing import Any

from router.config.model import PolicyConfig

Values = dict[str, Any]


def merged(low: Values, high: Values) -> Values:
    """Merge `high` over `low`: mappings key by key, lists and scalars as a whole.

    A source that names another policy does not inherit the parameters of the policy that it replaces.
    """
    both = {**low, **high}
    for key in low.keys() & high.keys():
        if isinstance(low[key], dict) and isinstance(high[key], dict):
            below = _without_stale_params(low[key], high[key]) if key == "policy" else low[key]
            both[key] = merged(below, high[key])
    return both


def _without_stale_params(low: Values, high: Values) -> Values:
    named = low.get("name", PolicyConfig().name)
    if high.get("name", named) == named:
        return low
    return {key: value for key, value in low.items() if key != "params"}
