"""The desired state and its history, and its settings read again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from router.admin import changes
from router.admin.documents import ChangeDocument, DifferenceDocument, Shape
from router.admin.http.paging import page_of, paged
from router.admin.http.problems import not_found
from router.admin.operations import Answer, Call, change, read
from router.admin.watch import Watch
from router.control.change import RELOADED, Change
from router.control.state.desired_state import LiveSettings, tree_of
from router.control.state.differences import path_text, without_secrets
from router.control.state.merge import api_changes
from router.control.state.pending import remedy
from router.control.state.revisions import Revision, RevisionUnknownError

_MOST_DIGITS = 15
_UNKNOWN = {404: "no such revision, or it is no longer kept"}


class ConflictDocument(Shape, omit_defaults=True):
    """A setting that the admin API had changed to `api`, and that a reload changed to `file`, which wins."""

    path: str
    api: Any = msgspec.UNSET
    file: Any = msgspec.UNSET


class Pending(Shape, omit_defaults=True):
    """A setting that cannot change while the gateway runs: its value now, the value that was read, and what to do."""

    path: str
    do: str
    now: Any = msgspec.UNSET
    read: Any = msgspec.UNSET


class ReloadDocument(ChangeDocument):
    """A reload of the settings. Those that cannot change now are `pending`; everything else was applied."""

    conflicts: list[ConflictDocument]
    pending: list[Pending]


class DesiredStateDocument(Shape):
    """What operators can change while the gateway runs, without secrets. `settings` has the workers by id.

    `changed_by_api` are the differences from the settings of file, environment and flags. `kept`: changes outlive the
    process, because `state_dir` is set.
    """

    version: int
    kept: bool
    settings: dict[str, Any]
    changed_by_api: list[DifferenceDocument]


class RevisionSummary(Shape):
    """One change of the desired state. `number` is the version that it made, and `changes` counts its differences.

    `source` is start, api, reload or restore. `who` is the name of the caller's token, where known.
    """

    number: int
    at: str
    source: str
    who: str | None
    what: str
    changes: int


class RevisionDocument(RevisionSummary):
    """One change of the desired state, with its differences from the version before."""

    differences: list[DifferenceDocument]


class Revisions(Shape):
    """One page of the revisions that are kept, newest first."""

    revisions: list[RevisionSummary]
    next: str | None


@read("desired-state", DesiredStateDocument, versioned=True)
async def get_desired_state(call: Call) -> Answer:
    """What operators can change while the gateway runs, and what the API has changed in it."""
    control = call.system.control
    return Answer(
        DesiredStateDocument(
            version=control.state.version,
            kept=control.saving.keeps,
            settings=without_secrets((), tree_of(control.state.settings)),
            changed_by_api=changes.shown(api_changes(control.base, control.state.settings)),
        )
    )


@read(
    "revisions",
    Revisions,
    query=paged(100, 10_000, "most revisions to return; the latest 100 are kept", watch=True),
    watch=Watch("revisions", "number", newest_first=True, most=100),
    problems={410: "the revision that the cursor names is no longer kept"},
    versioned=True,
)
async def list_revisions(call: Call) -> Answer:
    """The latest changes of the desired state, newest first."""
    newest_first = call.system.control.history.revisions[::-1]
    page, cursor = page_of(newest_first, lambda one: str(one.number), call.query["limit"], call.query["cursor"])
    return Answer(Revisions(revisions=[RevisionSummary(**_summary(one)) for one in page], next=cursor))


@read("revisions/{number}", RevisionDocument, problems=_UNKNOWN, versioned=True)
async def get_revision(call: Call) -> Answer:
    """One revision, with its differences from the version before."""
    with _known():
        one = call.system.control.history.get(_number(call))
    return Answer(RevisionDocument(**_summary(one), differences=changes.shown(one.differences)))


@change("POST", "revisions/{number}/restore", gives=ChangeDocument, problems=_UNKNOWN)
async def restore_revision(call: Call) -> Answer:
    """Bring the gateway back to the state that a revision made. This makes a new revision."""
    control, number = call.system.control, _number(call)

    def earlier(_: LiveSettings) -> LiveSettings:
        return control.history.settings_at(number, control.state)

    with _known():
        outcome = await changes.make(call, earlier, f"restored revision {number}", "restore")
    return changes.done(outcome, Answer(changes.change_document(outcome, dry_run=call.dry_run)))


@change(
    "POST",
    "reload",
    gives=ReloadDocument,
    problems={422: "the settings have mistakes; detail has one line for each, with its place and the fix"},
)
async def reload(call: Call) -> Answer:
    """Read the settings again (file, environment, flags) and apply what has changed, as a whole or not at all."""
    with changes.refusals():
        found = await call.system.control.reload(
            Change(lambda now: now, RELOADED, "reload", call.who, call.if_match, call.dry_run)
        )
    outcome, processes = found.outcome, call.system.control.config.processes
    document = ReloadDocument(
        **msgspec.structs.asdict(changes.change_document(outcome, dry_run=call.dry_run)),
        conflicts=[
            ConflictDocument(
                path=path_text(one.path),
                api=without_secrets(one.path, one.api),
                file=without_secrets(one.path, one.file),
            )
            for one in found.conflicts
        ],
        pending=[
            Pending(
                path=one.place,
                do=remedy(one, processes),
                now=without_secrets(one.path, one.before),
                read=without_secrets(one.path, one.after),
            )
            for one in found.pending
        ],
    )
    return changes.done(outcome, Answer(document))


def _summary(one: Revision) -> dict[str, Any]:
    fields = {name: getattr(one, name) for name in ("number", "at", "source", "who", "what")}
    return {**fields, "changes": len(one.differences)}


def _number(call: Call) -> int:
    text = call.path["number"]
    if not text.isascii() or not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise not_found(f"revision {text[:40]!r}", _HINT)
    return int(text)


@contextmanager
def _known() -> Iterator[None]:
    try:
        yield
    except RevisionUnknownError as error:
        raise not_found(f"revision {error.number}", f"{_HINT}; it keeps {error.first} to {error.last}") from None


_HINT = "GET /admin/v1/revisions lists all that are kept"
