"""Entries of settings by name: the same three operations for each kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from router.admin import changes
from router.admin.documents import Body, Shape, merge_patch_of
from router.admin.http.paging import page_of, paged
from router.admin.http.problems import not_found
from router.admin.operations import Answer, Call, Operation, change, read
from router.config.model import ModelConfig, RateLimitsConfig, SloConfig, TenantConfig
from router.control.state import named_settings
from router.control.state.named_settings import NamedSettings, NameUnknownError

_Kind: TypeAlias = type[Any]

_PATCH = """A merge patch (RFC 7396) of {}'s settings: what it leaves out stays, and null takes a setting back to its
    default."""
SloChange = merge_patch_of(SloConfig, "SloChange", "A merge patch of `slo`. Null removes a target.")
ModelChange = merge_patch_of(ModelConfig, "ModelChange", _PATCH.format("a model"), slo=SloChange)
TenantChange = merge_patch_of(TenantConfig, "TenantChange", _PATCH.format("a tenant"))
RateLimitsChange = merge_patch_of(
    RateLimitsConfig,
    "RateLimitsChange",
    "A merge patch (RFC 7396) of the limits of a tenant or key: what it leaves out stays, and null removes a limit.",
)


class Models(Shape):
    """The settings of models by name. Their fields are those of the setting `models`.

    `next` is the `cursor` of the following page, or null.
    """

    models: dict[str, ModelConfig]
    next: str | None = None


class Tenants(Shape):
    """Tenants by name. Their fields are those of the setting `tenants`.

    `next` is the `cursor` of the following page, or null.
    """

    tenants: dict[str, TenantConfig]
    next: str | None = None


class NewNamedLimits(Body):
    """The limits of all tenants, or of all keys, by name."""

    limits: dict[str, RateLimitsConfig]


class NamedLimits(Shape):
    """Limits of tenants or keys by name. Their fields are those of the setting `limits.tenants`.

    `next` is the `cursor` of the following page, or null.
    """

    limits: dict[str, RateLimitsConfig]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class NamedResource:
    """One kind of settings, at `path` below /admin/v1. A name may have slashes in it.

    The names of its operations end in `noun`, and `about` is an entry in words. `gives` is the document of a page; its
    first field has the entries. With `every`, the document of all entries, these can be replaced at once.
    """

    settings: NamedSettings
    path: str
    noun: str
    about: str
    patch: _Kind
    gives: _Kind
    every: _Kind | None = None

    def operations(self) -> Iterator[Operation]:
        path, gives, about, noun = self.path, self.gives, self.about, self.noun
        summary, query = (
            f"{about[0].upper()}{about[1:]}, for every name.",
            paged(10_000, 10_000, "most entries to return"),
        )
        problems = {410: "the entry that the cursor names was removed"}
        listed = read(
            path, gives, name=f"list_{noun}s", summary=summary, query=query, problems=problems, versioned=True
        )
        yield listed(self._page)
        if self.every is not None:
            summary = f"Replace {about}, for all names at once."
            replaced = change("PUT", path, name=f"set_{noun}s", summary=summary, takes=self.every, gives=gives)
            yield replaced(self._set_all)
        each = f"{path}/{{name:path}}"
        summary = f"Set or change {about} by a merge patch. A name that is new begins with the defaults."
        kind = self.settings.kind
        changed = change("PATCH", each, name=f"change_{noun}", summary=summary, takes=self.patch, gives=kind)
        yield changed(self._change)
        problems = {404: "there is no entry with that name", 422: "the other settings are not valid without it"}
        removed = change("DELETE", each, name=f"remove_{noun}", summary=f"Remove {about}.", problems=problems)
        yield removed(self._remove)

    def _document(self, entries: Mapping[str, Any], cursor: str | None = None) -> Answer:
        return Answer(self.gives(**{self.gives.__struct_fields__[0]: entries, "next": cursor}))

    async def _page(self, call: Call) -> Answer:
        entries = self.settings.of(call.system.control.state.settings)
        names, cursor = page_of(list(entries), str, call.query["limit"], call.query["cursor"])
        return self._document({name: entries[name] for name in names}, cursor)

    async def _set_all(self, call: Call) -> Answer:
        entries = getattr(call.body, self.gives.__struct_fields__[0])
        outcome = await changes.make(call, self.settings.set_all(entries), f"set every {self.settings.one}")
        return changes.dry(outcome) if call.dry_run else changes.done(outcome, self._document(entries))

    async def _change(self, call: Call) -> Answer:
        name = call.path["name"]
        edit = self.settings.change(name, msgspec.to_builtins(call.body))
        outcome = await changes.make(call, edit, f"changed {self.settings.one} {name}")
        found = self.settings.of(call.system.control.state.settings).get(name)
        return changes.dry(outcome) if call.dry_run else changes.done(outcome, Answer(found))

    async def _remove(self, call: Call) -> Answer:
        name = call.path["name"]
        try:
            outcome = await changes.make(call, self.settings.remove(name), f"removed {self.settings.one} {name}")
        except NameUnknownError:
            raise not_found(f"{self.settings.one} {name!r}", f"GET /admin/v1/{self.path} lists all") from None
        return await changes.answered(call, outcome)


_LIMITS = (RateLimitsChange, NamedLimits, NewNamedLimits)
_RESOURCES = (
    NamedResource(named_settings.MODELS, "models", "model", "the settings of a model", ModelChange, Models),
    NamedResource(
        *(named_settings.TENANTS, "tenants", "tenant", "the keys, quotas and trust of a tenant"),
        *(TenantChange, Tenants),
    ),
    NamedResource(named_settings.TENANT_LIMITS, "limits/tenants", "tenant_limit", "the limits of a tenant", *_LIMITS),
    NamedResource(named_settings.KEY_LIMITS, "limits/keys", "key_limit", "the limits of an API key", *_LIMITS),
)
NAMED_OPERATIONS = tuple(operation for each in _RESOURCES for operation in each.operations())
"""The operations of all kinds."""
