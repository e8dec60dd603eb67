"""Merge one source over another."""

from __future__ import annotations

from typing import Any

from router.config.model import PolicyConfig

Values = dict[str, Any]


def merged(low: Values, high: Values) -> Values:
    """Merge `high` over `low`: mappings key by key, lists and scalars as a whole.

    A source that names another rule does not inherit the parameters of the rule that it replaces. A source that only
    switches a wrapper of the policy on keeps its parameters.
    """
    both = {**low, **high}
    for key in low.keys() & high.keys():
        if isinstance(low[key], dict) and isinstance(high[key], dict):
            both[key] = (_merged_policy if key == "policy" else merged)(low[key], high[key])
    return both


def _merged_policy(low: Values, high: Values) -> Values:
    kept = [name for name in ("hold", "lanes") if high.get(name) is True and isinstance(low.get(name), dict)]
    return merged(_without_stale_params(low, high), {key: value for key, value in high.items() if key not in kept})


def _without_stale_params(low: Values, high: Values) -> Values:
    named = low.get("rule", PolicyConfig().rule)
    if high.get("rule", named) == named:
        return low
    return {key: value for key, value in low.items() if key != "params"}
