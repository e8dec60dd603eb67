"""Merge one source over another."""

from __future__ import annotations

from typing import Any

from router.config.model import PolicyConfig
from router.config.tree import Path

Values = dict[str, Any]


def merged(low: Values, high: Values, path: Path = ()) -> Values:
    """Merge `high` over `low`, two mappings at `path`: mappings key by key, lists and scalars as a whole.

    A source that names another rule does not inherit the parameters of the rule that it replaces. A source that only
    switches a wrapper of a policy on keeps its parameters.
    """
    if path == ("policy",) or (len(path) == 2 and path[0] == "policies"):
        kept = [name for name in ("hold", "lanes") if high.get(name) is True and isinstance(low.get(name), dict)]
        low, high = _without_stale_params(low, high), {key: high[key] for key in high if key not in kept}
    both = {**low, **high}
    for key in low.keys() & high.keys():
        if isinstance(low[key], dict) and isinstance(high[key], dict):
            both[key] = merged(low[key], high[key], (*path, key))
    return both


def _without_stale_params(low: Values, high: Values) -> Values:
    named = low.get("rule", PolicyConfig().rule)
    if high.get("rule", named) == named:
        return low
    return {key: value for key, value in low.items() if key != "params"}
