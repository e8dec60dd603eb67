"""The admin API's changes as the gateways of a fleet share them: one document with a version."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType

from router.control.state.desired_state import LiveSettings, tree_of
from router.control.state.differences import SettingDifference, path_text, value_at
from router.control.state.merge import merge

_LINEAGE = 100
_NAMED_DEPTH = 2
"""Paths below this depth change an item that must be there: a label of a worker, a limit of a route."""


class SharedChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The changes over each gateway's file. `number` is the version, and `change` a random name of the change that
    made it, so that two changes made apart differ. `gateway` made it, and `what` says it in words.
    """

    number: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    change: Annotated[str, Meta(max_length=32)] = ""
    changes: tuple[SettingDifference, ...] = ()
    gateway: str = ""
    what: str = ""
    who: str | None = None
    lineage: tuple[str, ...] = ()
    """The names of the changes before it, latest first: a change that is not among them is lost to this one."""
    apart: bool | UnsetType = UNSET
    """Whether it was made while Redis did not answer."""


NONE_SHARED = SharedChanges()


class OvertakenError(Exception):
    """Another gateway of the fleet made a change at the same time, `newer`."""

    def __init__(self, newer: SharedChanges) -> None:
        self.newer = newer
        super().__init__(f"{newer.gateway or 'another gateway'} made shared version {newer.number}: {newer.what}")


class Sharing(Protocol):
    """Where the document is kept (`router.replicas.state_sharing`)."""

    @property
    def gateway(self) -> str: ...

    async def propose(self, after: SharedChanges, before: SharedChanges) -> SharedChanges | None:
        """Replace the document. Return the one that is there instead if it is not `before`, nor older.

        Raises:
            ApartError: it cannot be reached.
        """


class ApartError(Exception):
    """Redis does not answer."""


def next_shared(
    before: SharedChanges, changes: tuple[SettingDifference, ...], gateway: str, what: str, who: str | None
) -> SharedChanges:
    return SharedChanges(
        number=before.number + 1,
        change=secrets.token_hex(8),
        changes=changes,
        gateway=gateway,
        what=what,
        who=who,
        lineage=(before.change, *before.lineage)[:_LINEAGE] if before.number else (),
    )


def over(file: LiveSettings, changes: Sequence[SettingDifference]) -> LiveSettings:
    """Return the settings of the file with the changes over them. Changes of items that the file lacks are left out.

    Raises:
        msgspec.ValidationError: they are no settings then.
    """
    tree = tree_of(file)
    added = {change.path for change in changes if len(change.path) <= _NAMED_DEPTH}
    usable = [
        change
        for change in changes
        if len(change.path) <= _NAMED_DEPTH
        or change.path[:_NAMED_DEPTH] in added
        or value_at(tree, change.path[:_NAMED_DEPTH]) is not UNSET
    ]
    return merge(file, usable)


def lost_to(newer: SharedChanges, before: SharedChanges, mine: Sequence[SettingDifference]) -> str:
    """Return the changes of `mine` that were made here alone and that `newer` does not have, in words. `before` is the
    document last seen here.
    """
    if before.number and before.change in (newer.change, *newer.lineage):
        return ""
    others = {change.path: change.after for change in newer.changes}
    lost = [change for change in mine if change.path not in others or others[change.path] != change.after]
    return ", ".join(path_text(change.path) for change in lost)
