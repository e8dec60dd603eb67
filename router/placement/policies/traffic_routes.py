"""Routes: which policy decides for a request, by the request's properties. The first route that matches wins."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from router.config.model import RouteConfig, RouteMatch
from router.placement.policies.weighted import WeightedNames

DEFAULT = "default"
"""Name of the policy in the section `policy`, and of the only route while `routes` is empty."""
_COMPARISON = re.compile(r"(<=|>=|<|>|)\s*(-?[0-9]{1,9})")
_RANGE = re.compile(r"(-?[0-9]{1,9})\s*-\s*(-?[0-9]{1,9})")
_LARGEST = 10**9


_EQUAL, _LIKE, _WITHIN = ("stream", "api_key", "tenant"), ("model", "path"), ("prompt_tokens", "priority")
"""Conditions on a value, on a value or its beginning (``meta-*``), and on a number."""


class RouteFacts(msgspec.Struct, frozen=True, gc=False):
    """What routes can match on. `headers` has lower-case names. `prompt_tokens` is exact, or bytes / 4."""

    model: str | None
    path: str
    headers: Mapping[bytes, bytes]
    api_key: str | None
    tenant: str | None
    prompt_tokens: int
    stream: bool
    priority: int


Check: TypeAlias = Callable[[RouteFacts], bool]


class TrafficRoute:
    """One route: its conditions, and the policies that decide for its requests."""

    __slots__ = ("_split", "checks", "config", "name", "policy")

    def __init__(self, config: RouteConfig) -> None:
        self.config = config
        self.name = config.name
        self.checks = _checks(config.match)
        self.policy = config.policy or DEFAULT
        """The policy of a route without `split`."""
        self._split = WeightedNames(config.name, config.split) if config.split else None

    @property
    def policies(self) -> tuple[str, ...]:
        return (self.policy,) if self._split is None else self._split.names

    @property
    def matches_all(self) -> bool:
        return not self.checks

    def policy_of(self, request_id: str, session_id: str | None) -> str:
        """Return the policy that decides for a request. All requests of a session get the same."""
        if self._split is None:
            return self.policy
        return self._split.draw(request_id if session_id is None else session_id)


class TrafficRoutes:
    """All routes, in order. Without any, one route takes all requests to the default policy."""

    __slots__ = ("_table", "all")

    def __init__(self, routes: Sequence[RouteConfig]) -> None:
        self.adopt(routes)

    def adopt(self, routes: Sequence[RouteConfig]) -> None:
        self.all = tuple([TrafficRoute(route) for route in routes]) or (TrafficRoute(RouteConfig(name=DEFAULT)),)
        self._table = {route.name: route for route in self.all}

    @property
    def only(self) -> TrafficRoute | None:
        """The route of all requests if there is a single one; then no request needs `RouteFacts`."""
        return self.all[0] if len(self.all) == 1 else None

    def match(self, facts: RouteFacts) -> TrafficRoute:
        """Return the first route that matches. The last one takes the rest, whatever its conditions."""
        for route in self.all:
            for check in route.checks:
                if not check(facts):
                    break
            else:
                return route
        return self.all[-1]

    def named(self, name: str) -> TrafficRoute | None:
        return self._table.get(name)


def bounds_of(text: str) -> tuple[int, int]:
    """Return the least and the largest number that a comparison such as ``>32000`` or ``1000-8000`` admits.

    Raises:
        ValueError: `text` is no comparison, or no number satisfies it.
    """
    text = text.strip()
    if found := _COMPARISON.fullmatch(text):
        sign, number = found[1], int(found[2])
        least = {">": number + 1, ">=": number, "": number}.get(sign, -_LARGEST)
        most = {"<": number - 1, "<=": number, "": number}.get(sign, _LARGEST)
    elif found := _RANGE.fullmatch(text):
        least, most = int(found[1]), int(found[2])
    else:
        raise ValueError(f"{text!r} is not a comparison")
    if least > most:
        raise ValueError(f"no number is in {text!r}")
    return least, most


def _checks(match: RouteMatch) -> tuple[Check, ...]:
    """Return one function per condition, cheap ones first."""
    checks = [_equals(name, getattr(match, name)) for name in _EQUAL if getattr(match, name) is not None]
    checks += [_like(name, getattr(match, name)) for name in _LIKE if getattr(match, name) is not None]
    checks += [_within(name, getattr(match, name)) for name in _WITHIN if getattr(match, name) is not None]
    checks += [_header(name, value) for name, value in match.header.items()]
    return tuple(checks)


def _equals(fact: str, wanted: bool | str) -> Check:
    return lambda facts: bool(getattr(facts, fact) == wanted)


def _like(fact: str, pattern: str) -> Check:
    if not pattern.endswith("*"):
        return _equals(fact, pattern)
    return lambda facts: (getattr(facts, fact) or "").startswith(pattern[:-1])


def _within(fact: str, comparison: str) -> Check:
    least, most = bounds_of(comparison)
    return lambda facts: bool(least <= getattr(facts, fact) <= most)


def _header(name: str, pattern: str) -> Check:
    field, value = name.lower().encode("latin-1"), pattern.encode()
    if pattern == "*":
        return lambda facts: field in facts.headers
    if not pattern.endswith("*"):
        return lambda facts: facts.headers.get(field) == value
    return lambda facts: facts.headers.get(field, b"").startswith(value[:-1])
