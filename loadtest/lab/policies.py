"""Policies on the command line: RULE, or RULE:key=value:key=value with wrappers and parameters.

``hold`` and ``lanes`` take true or false, and ``hold.prefills`` is a parameter of a wrapper. Every other key is a
parameter of the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from policies.parameters import PolicyError
from policies.spec import WRAPPERS, PolicySpec


def parse_policy(text: str) -> PolicySpec:
    """Return the policy that a text names. A value is JSON if it parses as such (numbers, true), and else text.

    Raises:
        PolicyError: a key has no value, or the switch of a wrapper contradicts its parameters.
    """
    rule, *pairs = text.split(":")
    params: dict[str, Any] = {}
    around: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise PolicyError(rule, ("params", pair), "has no value", f"write {rule}:{pair}=VALUE")
        (around if key.partition(".")[0] in WRAPPERS else params)[key] = _value(value)
    return PolicySpec(rule, params, *[_wrapping(rule, name, around) for name in WRAPPERS])


def _wrapping(rule: str, name: str, given: Mapping[str, Any]) -> Any:
    table = {key.partition(".")[2]: value for key, value in given.items() if key.startswith(f"{name}.")}
    on = given.get(name)
    if not isinstance(on, bool | None):
        raise PolicyError(rule, (name,), f"{on!r} will not do", f"write {name}=true or {name}=false")
    if table and on is False:
        raise PolicyError(rule, (name,), "is off, and has parameters", f"leave out {name}=false or the parameters")
    return table or on


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
