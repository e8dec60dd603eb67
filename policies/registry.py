"""Policies by name, with typed parameters, and the wrappers around them.

A third party adds a policy by an entry point in group ``warmroute.policies`` that names a class. The class is
constructed as ``cls(params, rng)``, where ``params`` is an instance of its `params_type`. That is a struct derived from
`policies.params.Params`, or `Params` itself if the class has no `params_type`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from policies.marginal_cost.rule import MarginalCost
from policies.parameters import RULE, PolicyError, converted, described
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
from policies.spec import PolicySpec
from policies.view import Policy
from policies.wrappers.hold import AdmissionHold, HoldParams
from policies.wrappers.prefill_lanes import STREAM_WEIGHT, TERM, LanesParams, PrefillLanes

__all__ = ["BUILT_IN", "PolicyError", "PolicySpec", "build_policy", "describe", "policy_names", "terms_of"]

P = TypeVar("P", bound=Params)

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


def policy_names() -> list[str]:
    """Return every name that `build_policy` knows: built-in policies first, then policies of third parties."""
    return [*BUILT_IN, *sorted(name for name in _installed() if name not in BUILT_IN)]


def build_policy(spec: PolicySpec, rng: random.Random) -> Policy:
    """Build the rule of `spec` with its wrappers. `rng` is the rule's.

    Raises:
        PolicyError: unknown rule, unknown parameter, wrong type or value, or a third-party class that fails.
    """
    hold, lanes = hold_of(spec), lanes_of(spec)
    params = params_of(spec)
    policy = _built(spec.rule, rule_class(spec.rule), params, rng)
    if lanes is not None:
        own_weight = getattr(params, "stream_weight", STREAM_WEIGHT)
        policy = PrefillLanes(policy, own_weight if lanes.stream_weight is None else lanes.stream_weight)
    return policy if hold is None else AdmissionHold(policy, hold)


def _built(rule: str, cls: type[Any], params: Params, rng: random.Random) -> Policy:
    try:
        policy: Policy = cls(params, rng)
    except Exception as error:
        raise PolicyError(rule, RULE, f"its constructor raised {error!r}", "correct the plug-in") from error
    if not callable(getattr(policy, "decide", None)):
        raise PolicyError(rule, RULE, "has no decide(request, fleet)", "implement policies.view.Policy")
    return policy


def params_of(spec: PolicySpec) -> Params:
    return converted(spec.rule, "params", _params_type(spec.rule, rule_class(spec.rule)), spec.params)


def hold_of(spec: PolicySpec) -> HoldParams | None:
    return _wrapping(spec, "hold", spec.hold, HoldParams)


def lanes_of(spec: PolicySpec) -> LanesParams | None:
    return _wrapping(spec, "lanes", spec.lanes, LanesParams)


def _wrapping(spec: PolicySpec, name: str, given: object, kind: type[P]) -> P | None:
    if given is None:
        given = wrapped(spec.rule)
    if not isinstance(given, (bool, Mapping)):
        fix = f"write true, false, or a table with {', '.join(described(kind))}"
        raise PolicyError(spec.rule, (name,), f"{given!r} will not do", fix)
    if given is False:
        return None
    return converted(spec.rule, name, kind, {} if given is True else given)


def wrapped(rule: str) -> bool:
    """Return whether hold and lanes are around the rule unless its settings say otherwise."""
    return bool(getattr(rule_class(rule), "wrapped", False))


def describe(rule: str) -> dict[str, Any]:
    """Return one-line summary, terms, parameters (type, default, meaning) and the wrappers' defaults of a rule."""
    cls = rule_class(rule)
    return {
        "rule": rule,
        "summary": _summary(cls),
        "terms": dict(getattr(cls, "terms", {})),
        "params": described(_params_type(rule, cls)),
        "hold": wrapped(rule),
        "lanes": wrapped(rule),
    }


def describe_wrappers() -> dict[str, dict[str, Any]]:
    return {
        "hold": {"summary": _summary(AdmissionHold), "params": described(HoldParams)},
        "lanes": {"summary": _summary(PrefillLanes), "params": described(LanesParams)},
    }


def _summary(cls: type[Any]) -> str:
    return " ".join((cls.__doc__ or "").strip().split("\n\n")[0].split())


def terms_of(spec: PolicySpec) -> dict[str, str]:
    terms = dict(getattr(rule_class(spec.rule), "terms", {}))
    return terms if lanes_of(spec) is None else {**terms, TERM: PrefillLanes.meaning}


def rule_class(name: str) -> type[Any]:
    """Return the class of a rule.

    Raises:
        PolicyError: there is no such rule, or it cannot be loaded.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    entry = _installed().get(name)
    if entry is None:
        raise PolicyError(name, RULE, "no such policy", f"write one of {', '.join(policy_names())}")
    try:
        loaded: type[Any] = entry.load()
    except Exception as error:
        raise PolicyError(name, RULE, f"{entry.value} cannot be loaded ({error!r})", "correct the plug-in") from error
    return loaded


def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _params_type(name: str, cls: type[Any]) -> type[Params]:
    kind = getattr(cls, "params_type", Params)
    if not (isinstance(kind, type) and issubclass(kind, Params)):
        raise PolicyError(name, RULE, f"its params_type {kind!r} will not do", "derive it from policies.params.Params")
    return kind
