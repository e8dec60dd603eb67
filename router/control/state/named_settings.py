"""Live settings that are a mapping by names which operators choose, and the changes of one entry or of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from router.config.model import ModelConfig, RateLimitsConfig, Section, TenantConfig
from router.control.state.desired_state import LiveSettings

Edit = Callable[[LiveSettings], LiveSettings]
Entries = Mapping[str, Any]


class NameUnknownError(LookupError):
    """There is no entry with that name. `one` is the word for an entry."""

    def __init__(self, one: str, name: str) -> None:
        super().__init__(f"{one} {name!r}")
        self.one = one
        self.name = name


@dataclass(frozen=True, slots=True)
class NamedSettings:
    """One such mapping: `one` is the word for an entry. `of` reads the mapping, `put` replaces it.

    A change may add an entry of the type `kind`; with None it needs one that is there.
    """

    one: str
    kind: type[Section] | None
    of: Callable[[LiveSettings], Entries]
    put: Callable[[LiveSettings, dict[str, Any]], LiveSettings]

    def set_all(self, entries: Entries) -> Edit:
        return lambda settings: self.put(settings, dict(entries))

    def change(self, name: str, patch: Mapping[str, Any]) -> Edit:
        """Change an entry by a merge patch (RFC 7396), or add it: null takes a field back to its default.

        Raises `NameUnknownError`.
        """

        def edit(settings: LiveSettings) -> LiveSettings:
            before = self.of(settings).get(name)
            kind = self.kind if before is None else type(before)
            if kind is None:
                raise NameUnknownError(self.one, name)
            after = msgspec.convert(merged(msgspec.to_builtins(before or {}), patch), kind)
            return self.put(settings, {**self.of(settings), name: after})

        return edit

    def remove(self, name: str) -> Edit:
        """Remove an entry. Raises `NameUnknownError`."""

        def edit(settings: LiveSettings) -> LiveSettings:
            entries = dict(self.of(settings))
            if entries.pop(name, None) is None:
                raise NameUnknownError(self.one, name)
            return self.put(settings, entries)

        return edit


WORKERS = NamedSettings(
    "worker", None, lambda settings: settings.workers, lambda settings, workers: replace(settings, workers=workers)
)
POLICIES = NamedSettings(
    "policy", None, lambda settings: settings.policies, lambda settings, policies: replace(settings, policies=policies)
)
MODELS = NamedSettings(
    "model", ModelConfig, lambda settings: settings.models, lambda settings, models: replace(settings, models=models)
)
TENANTS = NamedSettings(
    "tenant",
    TenantConfig,
    lambda settings: settings.tenants,
    lambda settings, tenants: replace(settings, tenants=tenants),
)
TENANT_LIMITS = NamedSettings(
    "limit of tenant",
    RateLimitsConfig,
    lambda settings: settings.limits.tenants,
    lambda settings, limits: replace(settings, limits=replace(settings.limits, tenants=limits)),
)
KEY_LIMITS = NamedSettings(
    "limit of key",
    RateLimitsConfig,
    lambda settings: settings.limits.keys,
    lambda settings, limits: replace(settings, limits=replace(settings.limits, keys=limits)),
)


def merged(tree: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree of settings after a merge patch (RFC 7396)."""
    result = dict(tree)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            below = result.get(key)
            result[key] = merged(below if isinstance(below, Mapping) else {}, value)
        else:
            result[key] = value
    return result
