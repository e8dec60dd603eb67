"""List, show, set and remove entries of settings by name: the same five operations for each kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec

from router.admin import changes, documents
from router.admin.http.paging import CURSOR, page_of
from router.admin.http.parameters import Query
from router.admin.http.problems import AdminError, not_found
from router.admin.operations import Answer, Call, Operation
from router.config.model import ModelConfig, RateLimitsConfig, TenantConfig
from router.control import named_settings
from router.control.change import ChangeOutcome
from router.control.named_settings import Entries, NamedSettings, NameUnknownError
from router.control.state.edits import Edit
from router.security.token import Role

_INVALID = {422: "a field is missing, unknown, or has a value that is not valid"}


@dataclass(frozen=True, slots=True)
class NamedResource:
    """Settings by name as a resource of the API, at `path` below /admin/v1. Its operations are named by `noun`.

    `about` is an entry in words. `gives` is the document of a page and `takes` that of all entries; both have them in
    the field `field`.
    """

    settings: NamedSettings
    path: str
    noun: str
    about: str
    field: str
    entry: type[Any]
    patch: type[Any]
    gives: type[Any]
    takes: type[Any]

    async def page(self, call: Call) -> Answer:
        entries = self._entries(call)
        names, cursor = page_of(list(entries), str, call.query["limit"], call.query["cursor"])
        return changes.versioned(call, Answer(self._document({name: entries[name] for name in names}, cursor)))

    async def show(self, call: Call) -> Answer:
        entry = self._entries(call).get(call.path["name"])
        if entry is None:
            raise self._unknown(call)
        return changes.versioned(call, Answer(entry))

    async def set_all(self, call: Call) -> Answer:
        entries: Entries = getattr(call.body, self.field)
        outcome = await changes.make(call, self.settings.set_all(entries), f"set every {self.settings.one}")
        return _answer(call, outcome, Answer(self._document(entries, None)))

    async def set_one(self, call: Call) -> Answer:
        """Add an entry, or replace the one of that name."""
        name = call.path["name"]
        outcome = await changes.make(call, self.settings.set_one(name, call.body), f"set {self.settings.one} {name}")
        return _answer(call, outcome, Answer(call.body))

    async def change(self, call: Call) -> Answer:
        edit = self.settings.change(call.path["name"], msgspec.to_builtins(call.body))
        outcome = await self._known(call, edit, "changed")
        return _answer(call, outcome, await self.show(call))

    async def remove(self, call: Call) -> Answer:
        outcome = await self._known(call, self.settings.remove(call.path["name"]), "removed")
        return _answer(call, outcome, Answer(None, HTTPStatus.NO_CONTENT))

    async def _known(self, call: Call, edit: Edit, did: str) -> ChangeOutcome:
        """Change an entry that must exist."""
        try:
            return await changes.make(call, edit, f"{did} {self.settings.one} {call.path['name']}")
        except NameUnknownError:
            raise self._unknown(call) from None

    def _entries(self, call: Call) -> Entries:
        return self.settings.of(call.system.control.state.settings)

    def _document(self, entries: Entries, cursor: str | None) -> Any:
        return self.gives(**{self.field: dict(entries), "next": cursor})

    def _unknown(self, call: Call) -> AdminError:
        return not_found(f"{self.settings.one} {call.path['name']!r}", f"GET /admin/v1/{self.path} lists all")


MODELS = NamedResource(
    named_settings.MODELS,
    "models",
    "model",
    "the settings of a model",
    "models",
    ModelConfig,
    documents.ModelChange,
    documents.Models,
    documents.NewModels,
)

TENANTS = NamedResource(
    named_settings.TENANTS,
    "tenants",
    "tenant",
    "the keys, quotas and trust of a tenant",
    "tenants",
    TenantConfig,
    documents.TenantChange,
    documents.Tenants,
    documents.NewTenants,
)
TENANT_LIMITS = NamedResource(
    named_settings.TENANT_LIMITS,
    "limits/tenants",
    "tenant_limit",
    "the limits of a tenant",
    "limits",
    RateLimitsConfig,
    documents.RateLimitsChange,
    documents.NamedLimits,
    documents.NewNamedLimits,
)
KEY_LIMITS = NamedResource(
    named_settings.KEY_LIMITS,
    "limits/keys",
    "key_limit",
    "the limits of an API key",
    "limits",
    RateLimitsConfig,
    documents.RateLimitsChange,
    documents.NamedLimits,
    documents.NewNamedLimits,
)


def operations_of(resource: NamedResource) -> Iterator[Operation]:
    """Yield the operations of one kind of settings. A name may have slashes in it."""
    noun, about, every = resource.noun, resource.about, f"/admin/v1/{resource.path}"
    each, missing = f"{every}/{{name:path}}", {404: "there is no entry with that name"}
    yield Operation(
        "GET",
        every,
        f"list_{noun}s",
        f"{about[0].upper()}{about[1:]}, for every name.",
        resource.page,
        gives=resource.gives,
        query=(Query("limit", 10_000, 10_000, "most entries to return"), CURSOR),
        problems={
            410: "the entry that the cursor names was removed",
            422: "a query parameter has a value that is not valid",
        },
    )
    yield _change(
        "PUT",
        every,
        f"set_{noun}s",
        f"Replace {about}, for all names at once.",
        resource.set_all,
        takes=resource.takes,
        gives=resource.gives,
    )
    summary = f"{about[0].upper()}{about[1:]}."
    yield Operation("GET", each, f"get_{noun}", summary, resource.show, gives=resource.entry, problems=missing)
    yield _change(
        "PUT",
        each,
        f"put_{noun}",
        f"Set {about}, from the next request on.",
        resource.set_one,
        takes=resource.entry,
        gives=resource.entry,
    )
    yield _change(
        "PATCH",
        each,
        f"change_{noun}",
        f"Change {about} in part, by a merge patch.",
        resource.change,
        takes=resource.patch,
        gives=resource.entry,
        problems={**missing, **_INVALID},
    )
    yield _change(
        "DELETE",
        each,
        f"remove_{noun}",
        f"Remove {about}.",
        resource.remove,
        status=HTTPStatus.NO_CONTENT,
        problems={**missing, 422: "the other settings are not valid without it"},
    )


def _change(
    method: str, path: str, name: str, summary: str, handle: Callable[[Call], Awaitable[Answer]], **more: Any
) -> Operation:
    return Operation(
        method,
        path,
        name,
        summary,
        handle,
        role=Role.ADMIN,
        query=(changes.DRY_RUN,),
        changes_state=True,
        **{"problems": _INVALID, **more},
    )


def _answer(call: Call, outcome: ChangeOutcome, answer: Answer) -> Answer:
    return changes.dry(outcome) if call.dry_run else changes.done(outcome, answer)


NAMED_OPERATIONS = tuple(
    operation for each in (MODELS, TENANTS, TENANT_LIMITS, KEY_LIMITS) for operation in operations_of(each)
)
"""The operations of all kinds."""
