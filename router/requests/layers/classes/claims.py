"""What a request claims: its class, the tenant or fairness id that takes turns, and its deadlines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from router.placement.admission.classes import Claim, RequestClass
from router.requests.request_head import RequestHead
from router.security.callers import CLASS_HEADERS, FAIRNESS_HEADERS, TTFT_MS_HEADERS, TTL_HEADER, Caller

_ID_BYTES: Final = 64
_MILLISECONDS: Final = re.compile(rb"\d{1,9}(\.\d{1,6})?")
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h)")
_UNITS_S: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


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
