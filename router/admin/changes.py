"""Change the desired state on behalf of an admin call. The same for one process and for several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus

from router.admin.documents import ChangeDocument, DifferenceDocument
from router.admin.http.problems import AdminError, handed_over, invalid, not_found
from router.admin.operations import Answer, Call, Operation
from router.config.problems import ConfigError
from router.control.change import Change, ChangeOutcome, HandedOverError, NotAppliedError, StaleTagError
from router.control.sharing import OvertakenError
from router.control.state import edits
from router.control.state.differences import SettingDifference, without_secrets
from router.control.state.named_settings import POLICIES, WORKERS, Edit, NameUnknownError
from router.control.state.revisions import Source
from router.control.state_file import NotSavedError

KEPT = "x-warmroute-kept"
"""Header of answers to changes. state_dir: the change is on disk. process: it ends with the process."""

SHARED = "x-warmroute-shared"
"""Header of answers to changes, with Redis. fleet: all gateways get the change. apart: Redis does not answer, so that
the change is here alone, and is lost if another gateway has a higher version when Redis is back."""


async def make(call: Call, edit: Edit, what: str, source: Source = "api") -> ChangeOutcome:
    """Make one change.

    Raises:
        AdminError: the change is refused, and nothing has changed.
    """
    with refusals():
        return await call.system.control.make(
            Change(edit, what, source, who=call.who, if_match=call.if_match, dry_run=call.dry_run)
        )


@contextmanager
def refusals() -> Iterator[None]:
    """Turn the refusals of `Control` into errors of the API."""
    try:
        yield
    except edits.WorkerKnownError as error:
        detail = f"{error} is in the fleet already; DELETE it first to add it with other settings"
        raise AdminError(HTTPStatus.CONFLICT, "worker_exists", detail) from None
    except NameUnknownError as error:
        if error.one == WORKERS.one:
            raise unknown_worker(error.name) from None
        if error.one == POLICIES.one:
            raise not_found(str(error), "GET /admin/v1/policies lists all") from None
        raise
    except HandedOverError:
        raise handed_over() from None
    except StaleTagError as error:
        detail = f"{error}; GET it again, and repeat the change if it still applies"
        raise AdminError(HTTPStatus.PRECONDITION_FAILED, "state_changed", detail) from None
    except ConfigError as error:
        raise invalid("\n".join(map(str, error.problems))) from None
    except OvertakenError as error:
        detail = (
            f"the change was undone, because {error}; GET the state again, and repeat the change if it still applies"
        )
        raise AdminError(HTTPStatus.CONFLICT, "overtaken", detail) from None
    except NotAppliedError as error:
        detail = f"the gateway cannot be brought to this state and stays as it was: {error}"
        raise AdminError(HTTPStatus.INTERNAL_SERVER_ERROR, "not_applied", detail) from None
    except NotSavedError as error:
        detail = f"the change was undone, because it could not be saved: {error}"
        raise AdminError(HTTPStatus.INSUFFICIENT_STORAGE, "not_saved", detail) from None


async def answered(
    call: Call, outcome: ChangeOutcome, read: Operation | None = None, path: Mapping[str, str] | None = None
) -> Answer:
    """Return what a dry run would change; else what `read` shows now, or nothing."""
    if call.dry_run:
        return dry(outcome)
    answer = Answer(None, HTTPStatus.NO_CONTENT) if read is None else await call.shown(read, path or {})
    return done(outcome, answer)


def done(outcome: ChangeOutcome, answer: Answer) -> Answer:
    """Return `answer` with the version that the change made, and how long it lasts."""
    headers = {**answer.headers, "etag": outcome.state.tag, KEPT: "state_dir" if outcome.kept else "process"}
    if outcome.shared is not None:
        headers[SHARED] = "fleet" if outcome.shared else "apart"
    return replace(answer, headers=headers, differences=shown(outcome.effective))


def dry(outcome: ChangeOutcome) -> Answer:
    return Answer(change_document(outcome, dry_run=True), headers={"etag": outcome.state.tag})


def change_document(outcome: ChangeOutcome, *, dry_run: bool) -> ChangeDocument:
    differences = shown(outcome.effective)
    return ChangeDocument(version=outcome.state.version, dry_run=dry_run, kept=outcome.kept, differences=differences)


def shown(differences: Sequence[SettingDifference]) -> list[DifferenceDocument]:
    """Return differences as documents, without secrets."""
    return [
        DifferenceDocument(
            path=one.place, before=without_secrets(one.path, one.before), after=without_secrets(one.path, one.after)
        )
        for one in differences
    ]


def unknown_worker(name: str) -> AdminError:
    return not_found(f"worker {name!r}", "GET /admin/v1/workers lists all; ids are host:port")
