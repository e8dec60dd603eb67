"""Entries of settings by name: the same three operations for each kind."""

from __future__ import annotations

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


def _operations_of(
    settings: NamedSettings,
    path: str,
    noun: str,
    about: str,
    patch: _Kind,
    gives: _Kind,
    every: _Kind | None = None,
) -> tuple[Operation, ...]:
    """Return the operations of one kind of settings, at `path` below /admin/v1. A name may have slashes in it.

    Their names end in `noun`, and `about` is an entry in words. `gives` is the document of a page; its first field has
    the entries. With `every`, the document of all entries, these can be replaced at once.
    """
    each = f"{path}/{{name:path}}"
    title, field = f"{about[0].upper()}{about[1:]}", gives.__struct_fields__[0]

    @read(
        path,
        gives,
        name=f"list_{noun}s",
        summary=f"{title}, for every name.",
        query=paged(10_000, 10_000, "most entries to return"),
        problems={410: "the entry that the cursor names was removed"},
        versioned=True,
    )
    async def page(call: Call) -> Answer:
        entries = settings.of(call.system.control.state.settings)
        names, cursor = page_of(list(entries), str, call.query["limit"], call.query["cursor"])
        return Answer(gives(**{field: {name: entries[name] for name in names}, "next": cursor}))

    summary = f"Replace {about}, for all names at once."

    @change("PUT", path, name=f"set_{noun}s", summary=summary, takes=every, gives=gives)
    async def set_all(call: Call) -> Answer:
        entries = getattr(call.body, field)
        outcome = await changes.make(call, settings.set_all(entries), f"set every {settings.one}")
        shown = Answer(gives(**{field: entries, "next": None}))
        return changes.dry(outcome) if call.dry_run else changes.done(outcome, shown)

    summary = f"Set or change {about} by a merge patch. A name that is new begins with the defaults."

    @change("PATCH", each, name=f"change_{noun}", summary=summary, takes=patch, gives=settings.kind)
    async def change_one(call: Call) -> Answer:
        name = call.path["name"]
        edit = settings.change(name, msgspec.to_builtins(call.body))
        outcome = await changes.make(call, edit, f"changed {settings.one} {name}")
        found = settings.of(call.system.control.state.settings).get(name)
        return changes.dry(outcome) if call.dry_run else changes.done(outcome, Answer(found))

    problems = {404: "there is no entry with that name", 422: "the other settings are not valid without it"}

    @change("DELETE", each, name=f"remove_{noun}", summary=f"Remove {about}.", problems=problems)
    async def remove(call: Call) -> Answer:
        name = call.path["name"]
        try:
            outcome = await changes.make(call, settings.remove(name), f"removed {settings.one} {name}")
        except NameUnknownError:
            raise not_found(f"{settings.one} {name!r}", f"GET /admin/v1/{path} lists all") from None
        return await changes.answered(call, outcome)

    return page, *((set_all,) if every else ()), change_one, remove


_LIMITS = (RateLimitsChange, NamedLimits, NewNamedLimits)
NAMED_OPERATIONS = (
    *_operations_of(named_settings.MODELS, "models", "model", "the settings of a model", ModelChange, Models),
    *_operations_of(
        *(named_settings.TENANTS, "tenants", "tenant", "the keys, quotas and trust of a tenant"),
        *(TenantChange, Tenants),
    ),
    *_operations_of(named_settings.TENANT_LIMITS, "limits/tenants", "tenant_limit", "the limits of a tenant", *_LIMITS),
    *_operations_of(named_settings.KEY_LIMITS, "limits/keys", "key_limit", "the limits of an API key", *_LIMITS),
)
"""The operations of all kinds."""
