"""Read the settings again."""

from __future__ import annotations

from router.admin import changes
from router.admin.documents import ConflictDocument, Pending, ReloadDocument
from router.admin.operations import Answer, Call
from router.control.change import Reloaded
from router.control.state.differences import path_text, without_secrets
from router.control.state.pending import remedy


async def reload(call: Call) -> Answer:
    """Apply what has changed in the settings, as a whole."""
    found = await changes.reload(call)
    return changes.done(found.outcome, Answer(_document(call, found)))


def _document(call: Call, found: Reloaded) -> ReloadDocument:
    outcome, processes = found.outcome, call.system.control.config.processes
    return ReloadDocument(
        version=outcome.state.version,
        dry_run=call.dry_run,
        kept=outcome.kept,
        differences=changes.shown(outcome.effective),
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
