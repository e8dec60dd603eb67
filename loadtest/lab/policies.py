"""Policies on the command line: RULE, or RULE:key=value:key=value with wrappers and parameters.

``hold`` and ``lanes`` take true or false, and ``hold.prefills`` is a parameter of a wrapper. Every other key is a
parameter of the rule.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from policies.parameters import PolicyError
from policies.params import Params
from policies.registry import build_policy, hold_of, lanes_of, params_of, wrapped
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


def policy_text(spec: PolicySpec) -> str:
    """Return the one spelling of a policy: all parameters of the rule that are given, and wrappers where they differ
    from the rule's default.

    Raises:
        PolicyError: it cannot be built.
    """
    build_policy(spec, random.Random(0))
    words = [spec.rule]
    for name, params in (("hold", hold_of(spec)), ("lanes", lanes_of(spec))):
        words += _around(name, params, wrapped(spec.rule))
    given = msgspec.structs.asdict(params_of(spec))
    words += [f"{key}={_text(given[key])}" for key in sorted(spec.params)]
    return ":".join(words)


def _around(name: str, params: Params | None, by_default: bool) -> Iterator[str]:
    if params is None:
        yield from [f"{name}=false"] if by_default else []
        return
    usual = msgspec.structs.asdict(type(params)())
    changed = {key: value for key, value in msgspec.structs.asdict(params).items() if value != usual[key]}
    if not changed and not by_default:
        yield f"{name}=true"
    yield from (f"{name}.{key}={_text(value)}" for key, value in sorted(changed.items()))


def normal_policy(text: str) -> str:
    """Return the one spelling of the policy that `text` names.

    Raises:
        PolicyError: it cannot be built.
    """
    return policy_text(parse_policy(text))


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _text(value: Any) -> str:
    return value if isinstance(value, str) and _value(value) == value else msgspec.json.encode(value).decode()
