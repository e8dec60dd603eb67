"""What a request claims: its class, the tenant or fairness id that takes turns, and its deadlines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from router.config.model import ClassConfig, Config, RouteConfig
from router.placement.admission.classes import Claim, RequestClass
from router.requests.request_head import RequestHead
from router.security.callers import CLASS_HEADERS, FAIRNESS_HEADERS, TTFT_MS_HEADERS, TTL_HEADER, Caller


class ClaimingRequest(Protocol):
    head: RequestHead
    caller: Caller
    service_tier: str | None


_ID_BYTES: Final = 64
_MILLISECONDS: Final = re.compile(rb"\d{1,9}(\.\d{1,6})?")
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h)")
_UNITS_S: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class Claims:
    """The classes of the settings, and what requests claim of them."""

    def __init__(self, config: Config) -> None:
        self.classes: Mapping[str, RequestClass] = {name: class_of(name, one) for name, one in config.classes.items()}
        self._default = self.classes.get("default") or next(iter(self.classes.values()))
        self._by_tier = {tier: name for name, one in config.classes.items() for tier in one.service_tiers}
        self._by_route: Mapping[str, str | None] = {}

    def adopt(self, routes: Sequence[RouteConfig]) -> None:
        self._by_route = {route.name: route.request_class for route in routes}

    def of(self, request: ClaimingRequest, route: str) -> Claim:
        by_tier = None if request.service_tier is None else self._by_tier.get(request.service_tier)
        by_route = self._by_route.get(route)
        return claim_of(request.head, request.caller, self.classes, self._default, by_route, by_tier)


def class_of(name: str, config: ClassConfig) -> RequestClass:
    slo = config.slo
    return RequestClass(
        name,
        config.share,
        config.floor,
        slo.ttft,
        slo.tpot,
        config.max_wait_s,
        config.starvation_s,
        config.preemptible,
    )


def claim_of(
    head: RequestHead,
    caller: Caller,
    classes: Mapping[str, RequestClass],
    default: RequestClass,
    by_route: str | None,
    by_tier: str | None = None,
) -> Claim:
    """Return what the request may claim. Whatever the caller may not claim is ignored.

    A caller may name the classes of its tenant; one that may send a priority may name all, and its own fairness id and
    deadlines. A header names the class, or else the service tier (`by_tier`). Without a claim the route's class holds,
    then the tenant's first one.
    """
    account, may_all = caller.account, "priority" in caller.may
    own = () if account is None else account.classes
    named = _first(head, CLASS_HEADERS)
    wanted = by_tier if named is None else named.decode("latin-1").lower()
    name = wanted if wanted in classes and (may_all or wanted in own) else by_route or next(iter(own), None)
    tenant = caller.tenant or caller.name or ""
    weight = 1.0 if account is None else account.weight
    if not may_all:
        return Claim(classes.get(name or "", default), tenant, weight)
    fairness = _first(head, FAIRNESS_HEADERS)
    if fairness is not None:
        tenant = f"{tenant}/{fairness[:_ID_BYTES].decode('latin-1')}"
    return Claim(classes.get(name or "", default), tenant, weight, _ttft_s(head), _ttl_s(head))


def _first(head: RequestHead, names: tuple[bytes, ...]) -> bytes | None:
    return next((head.fields[name] for name in names if head.fields.get(name)), None)


def _ttft_s(head: RequestHead) -> float | None:
    text = _first(head, TTFT_MS_HEADERS)
    return float(text) / 1e3 if text is not None and _MILLISECONDS.fullmatch(text) else None


def _ttl_s(head: RequestHead) -> float | None:
    """Return the wait that the request allows, written as a Go duration such as 1m30s; None without a valid one."""
    text = head.fields.get(TTL_HEADER, b"").decode("latin-1")
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    return seconds or None
