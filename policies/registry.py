"""Policies by name, with typed parameters.

A third party adds a policy by an entry point in group ``warmroute.policies`` that names a class. The class is
constructed as ``cls(params, rng)``, where ``params`` is an instance of its `params_type`. That is a struct derived from
`policies.params.Params`, or `Params` itself if the class has no `params_type`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import msgspec

from policies.marginal_cost import MarginalCost
from policies.params import Params
from policies.rules.aibrix_prefix import AibrixPrefix
from policies.rules.cache_aware import CacheAware
from policies.rules.chwbl import Chwbl
from policies.rules.dualmap import DualMap
from policies.rules.dynamo_default import DynamoDefault
from policies.rules.dynamo_two_tier import DynamoTwoTier
from policies.rules.least_requests import LeastRequests
from policies.rules.least_tokens import LeastTokens
from policies.rules.llmd_blend import LlmdBlend
from policies.rules.llmd_sticky import LlmdSticky
from policies.rules.lmetric import Lmetric
from policies.rules.lpwl import Lpwl
from policies.rules.power_of_two import PowerOfTwo
from policies.rules.preble import Preble
from policies.rules.random import RandomChoice
from policies.rules.round_robin import RoundRobin
from policies.rules.session_affinity import SessionAffinity
from policies.rules.smg_spill import SmgSpill
from policies.view import Policy

GROUP = "warmroute.policies"

BUILT_IN: Mapping[str, type[Any]] = {
    "marginal_cost": MarginalCost,
    "round_robin": RoundRobin,
    "random": RandomChoice,
    "least_requests": LeastRequests,
    "least_tokens": LeastTokens,
    "power_of_two": PowerOfTwo,
    "chwbl": Chwbl,
    "session_affinity": SessionAffinity,
    "cache_aware": CacheAware,
    "smg_spill": SmgSpill,
    "aibrix_prefix": AibrixPrefix,
    "preble": Preble,
    "dualmap": DualMap,
    "dynamo_default": DynamoDefault,
    "dynamo_two_tier": DynamoTwoTier,
    "llmd_blend": LlmdBlend,
    "llmd_sticky": LlmdSticky,
    "lmetric": Lmetric,
    "lpwl": Lpwl,
}


class PolicyError(Exception):
    """A policy that cannot be built. `parameter` is None if the problem is not a parameter."""

    def __init__(self, policy: str, parameter: str | None, problem: str, fix: str) -> None:
        place = f"policy {policy!r}" if parameter is None else f"policy {policy!r}, parameter {parameter!r}"
        super().__init__(f"{place}: {problem}; {fix}")
        self.policy = policy
        self.parameter = parameter
        self.problem = problem
        self.fix = fix


def policy_names() -> list[str]:
    """Return every name that `build_policy` knows: built-in policies first, then policies of third parties."""
    return [*BUILT_IN, *sorted(name for name in _installed() if name not in BUILT_IN)]


def build_policy(name: str, params: Mapping[str, Any], rng: random.Random) -> Policy:
    """Build the policy called `name`.

    Raises:
        PolicyError: unknown name, unknown parameter, wrong type or value, or a third-party class that fails.
    """
    cls = _find(name)
    values = _convert(name, _params_type(name, cls), params)
    try:
        policy = cls(values, rng)
    except Exception as error:
        raise PolicyError(name, None, f"its constructor raised {error!r}", "correct the plug-in") from error
    if not callable(getattr(policy, "decide", None)):
        raise PolicyError(name, None, "has no decide(request, fleet)", "implement policies.view.Policy")
    built: Policy = policy
    return built


def describe(name: str) -> dict[str, Any]:
    """Return name, one-line summary, terms and parameters (type, default, meaning) for help texts and the admin API."""
    cls = _find(name)
    fields = msgspec.structs.fields(_params_type(name, cls))
    return {
        "name": name,
        "summary": " ".join((cls.__doc__ or "").strip().split("\n\n")[0].split()),
        "terms": terms_of(name),
        "params": {field.name: {"type": _type_name(field), **_default(field), **_meaning(field)} for field in fields},
    }


def terms_of(name: str) -> dict[str, str]:
    """Return the terms of a policy's cost, each with its meaning in one line."""
    return dict(getattr(_find(name), "terms", {}))


def _find(name: str) -> type[Any]:
    if name in BUILT_IN:
        return BUILT_IN[name]
    entry = _installed().get(name)
    if entry is None:
        raise PolicyError(name, None, "no such policy", f"write one of {', '.join(policy_names())}")
    try:
        loaded: type[Any] = entry.load()
    except Exception as error:
        raise PolicyError(name, None, f"{entry.value} cannot be loaded ({error!r})", "correct the plug-in") from error
    return loaded


def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _params_type(name: str, cls: type[Any]) -> type[Params]:
    kind = getattr(cls, "params_type", Params)
    if not (isinstance(kind, type) and issubclass(kind, Params)):
        raise PolicyError(name, None, f"its params_type {kind!r} will not do", "derive it from policies.params.Params")
    return kind


def _convert(name: str, kind: type[Params], given: Mapping[str, Any]) -> Params:
    """Convert the parameters strictly, one at a time, so that an error names its parameter."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for parameter, value in given.items():
        if parameter not in fields:
            takes = f"write one of {', '.join(fields)}" if fields else "this policy takes no parameters"
            raise PolicyError(name, parameter, "no such parameter", takes)
        try:
            values[parameter] = msgspec.convert(value, fields[parameter].type)
        except msgspec.ValidationError as error:
            example = "".join(f", such as {value!r}" for value in _default(fields[parameter]).values())
            fix = f"write {_type_name(fields[parameter])}{example}"
            raise PolicyError(name, parameter, f"{value!r} will not do ({error})", fix) from None
    missing = [field.name for field in fields.values() if field.required and field.name not in values]
    if missing:
        raise PolicyError(name, missing[0], "is required", f"write {_type_name(fields[missing[0]])}")
    return kind(**values)


def _default(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    """Return ``{"default": value}``, empty for a required parameter."""
    if field.default_factory is not msgspec.NODEFAULT:
        return {"default": field.default_factory()}
    return {} if field.default is msgspec.NODEFAULT else {"default": field.default}


def _meaning(field: msgspec.structs.FieldInfo) -> dict[str, str]:
    """Return ``{"meaning": text}``, empty for a parameter without description."""
    shown = msgspec.inspect.type_info(field.type)
    schema = shown.extra_json_schema if isinstance(shown, msgspec.inspect.Metadata) else None
    return {"meaning": schema["description"]} if schema and "description" in schema else {}


_TYPE_WORDS = {
    "IntType": "a whole number",
    "FloatType": "a number",
    "StrType": "a string",
    "BoolType": "true or false",
    "ListType": "a list",
    "DictType": "a table",
}


def _type_name(field: msgspec.structs.FieldInfo) -> str:
    """Return a type for error messages, such as `a number at least 1`."""
    shown = msgspec.inspect.type_info(field.type)
    if isinstance(shown, msgspec.inspect.Metadata):
        shown = shown.type
    if isinstance(shown, msgspec.inspect.LiteralType):
        return " or ".join(repr(value) for value in shown.values)
    text = _TYPE_WORDS.get(type(shown).__name__, str(field.type))
    for bound, words in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")):
        value = getattr(shown, bound, None)
        if value is not None:
            text += f" {words} {value:g}"
    return text
