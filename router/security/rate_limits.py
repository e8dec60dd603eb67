"""Mistakes in the limits of tenants and keys, each with its place in the settings."""

from __future__ import annotations

from collections.abc import Iterator

from router.config.findings import Finding
from router.config.model import AuthConfig, Config, RateLimitsConfig
from router.config.tree import Path
from router.limits.registry import DEFAULT
from router.security.isolation import has_keys
from router.security.keys import parse_entry

_BURSTS = (("burst_requests", "requests_per_minute"), ("burst_tokens", "tokens_per_minute"))


def problems_of(config: Config) -> Iterator[Finding]:
    """Find mistakes in limits.tenants and limits.keys."""
    if DEFAULT in config.tenants:
        problem = f"a tenant is called {DEFAULT}, which in limits.tenants stands for all without limits of their own"
        yield ("tenants", DEFAULT), problem, "give the tenant another name"
    for name, limits in config.limits.tenants.items():
        place: Path = ("limits", "tenants", name)
        if name != DEFAULT and name not in config.tenants:
            known = ", ".join(sorted({DEFAULT, *config.tenants}))
            yield place, f"tenants has no tenant named {name!r}", f"write one of {known}"
        yield from _numbers(place, limits)
    known_keys = _key_names(config.auth)
    for name, limits in config.limits.keys.items():
        place = ("limits", "keys", name)
        if not has_keys(config.auth):
            yield place, "limits.keys is set, but the port has no API keys", "write auth.api_keys as well, or remove it"
        elif known_keys is not None and name not in known_keys:
            yield place, f"auth.api_keys has no key named {name!r}", "write an existing name"
        yield from _numbers(place, limits)


def _numbers(place: Path, limits: RateLimitsConfig) -> Iterator[Finding]:
    for burst, rate in _BURSTS:
        if getattr(limits, burst) is not None and not getattr(limits, rate):
            section = ".".join(map(str, place))
            yield (*place, burst), f"{section}.{burst} is set, and no {rate}", f"write {rate} as well, or remove it"


def _key_names(auth: AuthConfig) -> set[str] | None:
    """Return the names of all keys; None if a key file may bring others, or a mistake is reported elsewhere."""
    if auth.api_keys_file is not None:
        return None
    try:
        return {parse_entry(line).name for line in auth.api_keys}
    except ValueError:
        return None
