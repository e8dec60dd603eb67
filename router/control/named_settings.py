"""Live settings that are a mapping by names which operators choose, and the changes of one entry or of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from router.config.model import ModelConfig, RateLimitsConfig, Section, TenantConfig
from router.control.state.desired_state import LiveSettings
from router.control.state.edits import Edit, merged

Entries = Mapping[str, Any]


class NameUnknownError(LookupError):
    """There is no entry with that name."""


@dataclass(frozen=True, slots=True)
class NamedSettings:
    """One such mapping: `one` is the word for an entry, `kind` its type. `of` reads the mapping, `put` replaces it."""

    one: str
    kind: type[Section]
    of: Callable[[LiveSettings], Entries]
    put: Callable[[LiveSettings, dict[str, Any]], LiveSettings]

    def set_all(self, entries: Entries) -> Edit:
        return lambda settings: self.put(settings, dict(entries))

    def change(self, name: str, patch: Mapping[str, Any]) -> Edit:
        """Set or change an entry by a merge patch (RFC 7396): null takes a field back to its default."""

        def edit(settings: LiveSettings) -> LiveSettings:
            before = msgspec.to_builtins(self.of(settings).get(name, {}))
            after = msgspec.convert(merged(before, patch), self.kind)
            return self.put(settings, {**self.of(settings), name: after})

        return edit

    def remove(self, name: str) -> Edit:
        """Remove an entry. Raises `NameUnknownError`."""

        def edit(settings: LiveSettings) -> LiveSettings:
            entries = dict(self.of(settings))
            if entries.pop(name, None) is None:
                raise NameUnknownError(name)
            return self.put(settings, entries)

        return edit


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
