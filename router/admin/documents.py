"""What the JSON documents of the admin API have in common. Each resource has its own beside its operations.

Times are seconds, sizes tokens or blocks as named; shares run from 0 to 1. A class ends in Document if another class of
the router has the same name. The API drops that suffix.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

import msgspec

from router.config.model import Section


class Shape(msgspec.Struct, kw_only=True, omit_defaults=False):
    """Base of the documents that the API answers with."""


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of the bodies that the API accepts; an unknown field is an error.

    `settings` is the section whose settings its fields are, if they are.
    """

    settings: ClassVar[type[Section] | None] = None


class ProblemDocument(Shape):
    """An error (RFC 9457), served as application/problem+json. `code` is stable."""

    type: str
    title: str
    status: int
    detail: str
    code: str


class DifferenceDocument(Shape, omit_defaults=True):
    """A setting with its values before and after a change, without secrets. A value that is missing was not set.

    The values of a policy are those that apply, defaults included.
    """

    path: str
    before: Any = msgspec.UNSET
    after: Any = msgspec.UNSET


class ChangeDocument(Shape):
    """A change of the desired state, or what a dry run would change.

    `version` is that of the desired state now. `kept`: the change outlives the process, because `state_dir` is set.
    """

    version: int
    dry_run: bool
    kept: bool
    differences: list[DifferenceDocument]


def merge_patch_of(
    section: type[Section], name: str, description: str, only: Collection[str] = (), **patches: Any
) -> type[Any]:
    """Return the body of a merge patch of settings, where each may be left out, or null. `patches` are other types."""
    kinds = {one.name: one.type for one in msgspec.structs.fields(section)} | patches
    return msgspec.defstruct(
        name,
        [(each, kinds[each] | msgspec.UnsetType | None, msgspec.UNSET) for each in only or kinds],
        bases=(Body,),
        namespace={"__doc__": description, "settings": section},
        module=__name__,
    )
