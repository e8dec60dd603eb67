"""The desired state and its history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from router.admin import changes
from router.admin.documents import (
    ChangeDocument,
    DesiredStateDocument,
    RevisionDocument,
    Revisions,
    RevisionSummary,
)
from router.admin.http.paging import page_of
from router.admin.http.problems import not_found
from router.admin.operations import Answer, Call
from router.admin.watch import Watch
from router.control.state.desired_state import LiveSettings, tree_of
from router.control.state.differences import without_secrets
from router.control.state.merge import api_changes
from router.control.state.revisions import Revision, RevisionUnknownError

WATCHED = Watch("revisions", "number", newest_first=True, most=100)
_MOST_DIGITS = 15


async def desired_state(call: Call) -> Answer:
    control = call.system.control
    document = DesiredStateDocument(
        version=control.state.version,
        kept=control.keeps,
        settings=without_secrets((), tree_of(control.state.settings)),
        changed_by_api=changes.shown(api_changes(control.base, control.state.settings)),
    )
    return changes.versioned(call, Answer(document))


async def list_all(call: Call) -> Answer:
    """Answer with one page of the history, newest first."""
    newest_first = call.system.control.history.revisions[::-1]
    page, cursor = page_of(newest_first, lambda one: str(one.number), call.query["limit"], call.query["cursor"])
    return changes.versioned(call, Answer(Revisions(revisions=[_summary(one) for one in page], next=cursor)))


async def show(call: Call) -> Answer:
    with _known():
        one = call.system.control.history.get(_number(call))
    summary = _summary(one)
    document = RevisionDocument(
        number=summary.number,
        at=summary.at,
        source=summary.source,
        who=summary.who,
        what=summary.what,
        changes=summary.changes,
        differences=changes.shown(one.differences),
    )
    return changes.versioned(call, Answer(document))


async def restore(call: Call) -> Answer:
    """Bring the gateway back to the state that a revision made. The restore is a new revision."""
    control, number = call.system.control, _number(call)

    def earlier(_: LiveSettings) -> LiveSettings:
        return control.history.settings_at(number, control.state)

    with _known():
        outcome = await changes.make(call, earlier, f"restored revision {number}", "restore")
    document = ChangeDocument(
        version=outcome.state.version,
        dry_run=call.dry_run,
        kept=outcome.kept,
        differences=changes.shown(outcome.effective),
    )
    return changes.done(outcome, Answer(document))


def _summary(one: Revision) -> RevisionSummary:
    return RevisionSummary(
        number=one.number, at=one.at, source=one.source, who=one.who, what=one.what, changes=len(one.differences)
    )


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
