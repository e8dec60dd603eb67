"""What differs between two live settings when defaults are filled in: a rule's default may change without a setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from policies.registry import PolicyError, hold_of, lanes_of, params_of, wrapped
from policies.wrappers.prefill_lanes import STREAM_WEIGHT
from router.config.model import PolicyConfig
from router.control.state.desired_state import LiveSettings
from router.control.state.differences import Path, SettingDifference
from router.placement.policies.chosen_policy import spec_of

WRAPPERS = ("hold", "lanes")


def keeping_wrappers(wanted: PolicyConfig, before: PolicyConfig) -> PolicyConfig:
    """Return `wanted` with the hold and the lanes of `before`, where it says nothing of them.

    What is on stays on, and what was switched off stays off. What was off by the rule's default follows the default of
    the new rule.
    """
    kept = {name: _kept(name, wanted, before) for name in WRAPPERS if getattr(wanted, name) is None}
    return msgspec.structs.replace(wanted, **kept)


def _kept(name: str, wanted: PolicyConfig, before: PolicyConfig) -> Any:
    value = getattr(before, name)
    if value is not None:
        return value
    return True if _wraps(before.rule) and not _wraps(wanted.rule) else None


def _wraps(rule: str) -> bool:
    try:
        return wrapped(rule)
    except PolicyError:  # the check of the settings names the mistake
        return False


def with_effective(
    differences: tuple[SettingDifference, ...], before: LiveSettings, after: LiveSettings
) -> tuple[SettingDifference, ...]:
    """Return differences of settings with the effective values of policies, and with those that no setting shows.

    A wrapper that is set to what it was by default is left out, unless nothing else changes.
    """
    found = {one.path: one for one in _effective(before, after)}
    seen = [one for one in differences if one.path in found or not _is_wrapper(one.path)]
    listed = [found.pop(one.path, one) for one in seen or differences]
    below = {one.path[: len(path)] for one in listed for path in found}
    return (*listed, *(one for path, one in found.items() if path not in below))


def _is_wrapper(path: Path) -> bool:
    return path[0] in ("policy", "policies") and path[-1] in WRAPPERS


def _effective(before: LiveSettings, after: LiveSettings) -> Iterator[SettingDifference]:
    yield from _policy(("policy",), before.policy, after.policy)
    for name in before.policies.keys() & after.policies.keys():
        yield from _policy(("policies", name), before.policies[name], after.policies[name])


def _policy(path: Path, before: PolicyConfig, after: PolicyConfig) -> Iterator[SettingDifference]:
    if before == after:
        return
    try:
        old, new = _values(before), _values(after)
    except PolicyError:  # of a rule that is no longer installed
        return
    if before.rule == after.rule:
        yield from _changed((*path, "params"), old["params"], new["params"])
    yield from _changed(path, old["wrappers"], new["wrappers"])


def _changed(path: Path, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[SettingDifference]:
    for name in {**before, **after}:
        if before.get(name, UNSET) != after.get(name, UNSET):
            yield SettingDifference((*path, name), before.get(name, UNSET), after.get(name, UNSET))


def _values(policy: PolicyConfig) -> dict[str, dict[str, Any]]:
    """Return the parameters with their defaults, and each wrapper's parameters, or false if it is off."""
    spec = spec_of(policy)
    params, hold, lanes = params_of(spec), hold_of(spec), lanes_of(spec)
    own = getattr(params, "stream_weight", STREAM_WEIGHT)
    weight = own if lanes is None or lanes.stream_weight is None else lanes.stream_weight
    wrappers = {"hold": hold is not None and _set(hold), "lanes": lanes is not None and {"stream_weight": weight}}
    return {"params": _set(params), "wrappers": wrappers}


def _set(params: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(params).items() if value is not None}
