"""Mistakes in the settings of tenants, limits and isolation, warnings about them, and the quotas of one process."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import msgspec

from router.config.model import AuthConfig, Config, RateLimitsConfig, TenantConfig
from router.config.problems import Finding
from router.config.tree import Path
from router.limits.registry import DEFAULT
from router.security.file_problem import UnusableFileError
from router.security.isolation import has_keys, mode_of
from router.security.keys import NAME, api_keys, parse_entry

_BURSTS = (("burst_requests", "requests_per_minute"), ("burst_tokens", "tokens_per_minute"))
_ADD_KEYS = "write auth.api_keys or auth.api_keys_file as well, or remove it"


def problems_of(config: Config) -> Iterator[Finding]:
    """Find mistakes, each with its place in the settings."""
    auth = config.auth
    if not has_keys(auth):
        if config.tenants:
            yield ("tenants",), "tenants is set, but the port has no API keys that would identify them", _ADD_KEYS
        if auth.isolate_cache in ("key", "group"):
            problem = f"auth.isolate_cache is {auth.isolate_cache}, but the port has no API keys"
            yield ("auth", "isolate_cache"), problem, _ADD_KEYS
    # without keys it waits for them: deployments make one for every gateway
    if auth.isolation_secret is not None and auth.isolate_cache == "off":
        problem = "auth.isolation_secret is set, but auth.isolate_cache is off, so it has no effect"
        yield ("auth", "isolation_secret"), problem, "write auth.isolate_cache: key, or remove it"
    known = _key_names(auth)
    yield from _tenants(config, known)
    yield from _limits(config, known)


def _key_names(auth: AuthConfig) -> set[str] | None:
    """Return the names of all keys; None if a key file may bring others, or a mistake is reported elsewhere."""
    if auth.api_keys_file is not None:
        return None
    try:
        return {parse_entry(line).name for line in auth.api_keys}
    except ValueError:
        return None


def _tenants(config: Config, known: set[str] | None) -> Iterator[Finding]:
    owners: dict[str, str] = {}
    for name, tenant in config.tenants.items():
        place = ("tenants", name)
        if NAME.fullmatch(name) is None:
            yield place, f"{name!r} is not a tenant's name", "write letters, digits, dots, dashes and underscores"
        if not tenant.keys:
            yield (*place, "keys"), f"tenants.{name} has no keys", "write the names of its API keys"
        for index, key in enumerate(tenant.keys):
            if owners.setdefault(key, name) != name:
                problem = f"key {key} is in tenants {owners[key]} and {name}"
                yield (*place, "keys", index), problem, "remove it from one of the two"
            if known and key not in known:
                yield (*place, "keys", index), f"auth.api_keys has no key named {key!r}", "write an existing name"
        if tenant.cache_group is not None and mode_of(config.auth) != "group":
            problem = f"tenants.{name}.cache_group is set, but auth.isolate_cache is {mode_of(config.auth)}"
            yield (*place, "cache_group"), problem, "write auth.isolate_cache: group, or remove it"


def _limits(config: Config, known: set[str] | None) -> Iterator[Finding]:
    if DEFAULT in config.tenants:
        problem = f"a tenant is called {DEFAULT}, which in limits.tenants stands for all without limits of their own"
        yield ("tenants", DEFAULT), problem, "give the tenant another name"
    for name, limits in config.limits.tenants.items():
        place: Path = ("limits", "tenants", name)
        if name != DEFAULT and name not in config.tenants:
            names = ", ".join(sorted({DEFAULT, *config.tenants}))
            yield place, f"tenants has no tenant named {name!r}", f"write one of {names}"
        yield from _bursts(place, limits)
    for name, limits in config.limits.keys.items():
        place = ("limits", "keys", name)
        if not has_keys(config.auth):
            yield place, "limits.keys is set, but the port has no API keys", "write auth.api_keys as well, or remove it"
        elif known is not None and name not in known:
            yield place, f"auth.api_keys has no key named {name!r}", "write an existing name"
        yield from _bursts(place, limits)


def _bursts(place: Path, limits: RateLimitsConfig) -> Iterator[Finding]:
    for burst, rate in _BURSTS:
        if getattr(limits, burst) is not None and not getattr(limits, rate):
            section = ".".join(map(str, place))
            yield (*place, burst), f"{section}.{burst} is set, and no {rate}", f"write {rate} as well, or remove it"


def warnings(config: Config) -> Iterator[str]:
    """Find key names of tenants and limits that the key file does not have yet."""
    if config.auth.api_keys_file is None or not (config.tenants or config.limits.keys):
        return
    try:
        keys = api_keys(config.auth)
    except UnusableFileError:
        return  # reported as a mistake elsewhere
    known = keys.names if keys is not None else frozenset()
    for name, tenant in config.tenants.items():
        missing = sorted(set(tenant.keys) - known)
        if missing:
            yield f"tenants.{name} names keys that do not exist yet: {', '.join(missing)}"
    missing = sorted(set(config.limits.keys) - known)
    if missing:
        yield f"limits.keys names keys that do not exist yet: {', '.join(missing)}"


def quotas_of(tenants: Mapping[str, TenantConfig], processes: int, max_body_bytes: int) -> dict[str, TenantConfig]:
    """Return the tenants' quotas for one of `processes`. A share admits one whole body if the whole quota does."""
    return {name: _quota(tenant, processes, max_body_bytes) for name, tenant in tenants.items()}


def _quota(tenant: TenantConfig, processes: int, max_body_bytes: int) -> TenantConfig:
    queued, body_bytes = tenant.max_queued_requests, tenant.max_buffered_body_bytes
    return msgspec.structs.replace(
        tenant,
        max_queued_requests=None if queued is None else math.ceil(queued / processes),
        max_buffered_body_bytes=(
            None if body_bytes is None else max(math.ceil(body_bytes / processes), min(body_bytes, max_body_bytes))
        ),
    )
