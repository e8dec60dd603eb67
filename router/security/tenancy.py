"""Mistakes in the settings of tenants and isolation, warnings about them, and the quotas of one process."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import msgspec

from router.config.model import AuthConfig, Config, TenantConfig
from router.security.file_problem import UnusableFileError
from router.security.isolation import has_keys, mode_of
from router.security.keys import NAME, api_keys, parse_entry

Problem = tuple[tuple[str | int, ...], str, str]
"""Place, problem and fix."""

_ADD_KEYS = "write auth.api_keys or auth.api_keys_file as well, or remove it"


def problems_of(config: Config) -> Iterator[Problem]:
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
    yield from _tenants(config)


def _tenants(config: Config) -> Iterator[Problem]:
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
        yield from _unknown(config.auth, name, tenant.keys)
        if tenant.cache_group is not None and mode_of(config.auth) != "group":
            problem = f"tenants.{name}.cache_group is set, but auth.isolate_cache is {mode_of(config.auth)}"
            yield (*place, "cache_group"), problem, "write auth.isolate_cache: group, or remove it"


def _unknown(auth: AuthConfig, tenant: str, keys: tuple[str, ...]) -> Iterator[Problem]:
    """Find key names that can never exist. With a key file, they may still appear."""
    if auth.api_keys_file is not None or not auth.api_keys:
        return
    try:
        known = {parse_entry(line).name for line in auth.api_keys}
    except ValueError:
        return  # reported as a mistake in auth.api_keys
    for index, key in enumerate(keys):
        if key not in known:
            yield (
                ("tenants", tenant, "keys", index),
                f"auth.api_keys has no key named {key!r}",
                "write an existing name",
            )


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
