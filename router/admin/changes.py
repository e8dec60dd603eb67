"""Change the desired state on behalf of an admin call. The same for one process and for several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from urllib.parse import quote

import msgspec

from router.admin.documents import ChangeDocument, DifferenceDocument, NewPolicy, NewRoutes, NewWorker
from router.admin.http.body_problems import fix_of
from router.admin.http.parameters import TruthQuery
from router.admin.http.problems import AdminError, handed_over, invalid, not_found
from router.admin.operations import Answer, Call
from router.config.model import PolicyConfig, WorkerConfig
from router.config.problems import ConfigError
from router.control.change import (
    RELOADED,
    Change,
    ChangeOutcome,
    HandedOverError,
    NotAppliedError,
    Reloaded,
    StaleTagError,
)
from router.control.sharing import OvertakenError
from router.control.state import edits
from router.control.state.desired_state import worker_id
from router.control.state.differences import SettingDifference, without_secrets
from router.control.state.revisions import Source
from router.control.state_file import NotSavedError
from router.workers.settings import worker_findings

KEPT = "x-warmroute-kept"
"""Header of answers to changes. state_dir: the change is on disk. process: it ends with the process."""

SHARED = "x-warmroute-shared"
"""Header of answers to changes, with Redis. fleet: all gateways get the change. apart: Redis does not answer, so that
the change is here alone, and is lost if another gateway has a higher version when Redis is back."""

DRY_RUN = TruthQuery("dry_run", "answer with the differences that the change would make, and change nothing")


async def add_worker(call: Call) -> tuple[str, ChangeOutcome]:
    worker = configured(call.body)
    found = [f"{'.'.join(map(str, path))}: {problem}; {fix}" for path, problem, fix in worker_findings(worker, ())]
    if found:
        raise invalid("\n".join(found))
    name = worker_id(worker)
    return name, await make(call, edits.add_worker(worker), f"added worker {name}")


async def remove_worker(call: Call) -> ChangeOutcome:
    name = call.path["id"]
    return await make(call, edits.remove_worker(name), f"removed worker {name}")


async def change_worker(call: Call) -> ChangeOutcome:
    """Change settings of the worker that the path names."""
    name, patch = call.path["id"], msgspec.to_builtins(call.body)
    try:
        return await make(call, edits.change_worker(name, patch), f"changed worker {name}")
    except msgspec.ValidationError as error:
        raise invalid(f"the worker would not be valid: {error}{fix_of(str(error), WorkerConfig)}") from None


async def set_maintenance(call: Call, maintenance: bool) -> ChangeOutcome:
    """Drain or undrain the worker that the path names."""
    name = call.path["id"]
    what = f"{'drained' if maintenance else 'undrained'} worker {name}"
    return await make(call, edits.set_maintenance(name, maintenance), what)


async def set_policy(call: Call) -> ChangeOutcome:
    """Choose the policy that the body names."""
    wanted: NewPolicy = call.body
    policy = PolicyConfig(wanted.rule, wanted.params, wanted.hold, wanted.lanes)
    return await make(call, edits.set_policy(policy), f"chose policy {wanted.rule}")


async def set_named_policy(call: Call) -> ChangeOutcome:
    """Add or change the further policy that the path names."""
    wanted: NewPolicy = call.body
    name = call.path["name"]
    policy = PolicyConfig(wanted.rule, wanted.params, wanted.hold, wanted.lanes)
    return await make(call, edits.set_named_policy(name, policy), f"set policy {name}")


async def remove_named_policy(call: Call) -> ChangeOutcome:
    name = call.path["name"]
    return await make(call, edits.remove_named_policy(name), f"removed policy {name}")


async def set_routes(call: Call) -> ChangeOutcome:
    wanted: NewRoutes = call.body
    return await make(call, edits.set_routes(wanted.routes), f"set {len(wanted.routes)} routes")


async def reload(call: Call) -> Reloaded:
    """Read the settings again."""
    change = Change(lambda now: now, RELOADED, "reload", call.who, call.if_match, call.dry_run)
    with refusals():
        return await call.system.control.reload(change)


async def make(call: Call, edit: edits.Edit, what: str, source: Source = "api") -> ChangeOutcome:
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
    except edits.PolicyUnknownError as error:
        raise not_found(f"policy {str(error)!r}", "GET /admin/v1/policies lists all") from None
    except edits.WorkerUnknownError as error:
        raise unknown_worker(str(error)) from None
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


def done(outcome: ChangeOutcome, answer: Answer) -> Answer:
    """Return `answer` with the version that the change made, and how long it lasts."""
    headers = {**answer.headers, "etag": outcome.state.tag, KEPT: "state_dir" if outcome.kept else "process"}
    if outcome.shared is not None:
        headers[SHARED] = "fleet" if outcome.shared else "apart"
    return replace(answer, headers=headers, differences=shown(outcome.effective))


def dry(outcome: ChangeOutcome) -> Answer:
    document = ChangeDocument(
        version=outcome.state.version, dry_run=True, kept=outcome.kept, differences=shown(outcome.effective)
    )
    return Answer(document, headers={"etag": outcome.state.tag})


def shown(differences: Sequence[SettingDifference]) -> list[DifferenceDocument]:
    """Return differences as documents, without secrets."""
    return [
        DifferenceDocument(
            path=one.place, before=without_secrets(one.path, one.before), after=without_secrets(one.path, one.after)
        )
        for one in differences
    ]


def versioned(call: Call, answer: Answer) -> Answer:
    """Return `answer`, which shows a part of the desired state, with its version."""
    return replace(answer, headers={**answer.headers, "etag": call.system.control.state.tag})


def configured(wanted: NewWorker) -> WorkerConfig:
    return WorkerConfig(
        url=wanted.url,
        name=wanted.name,
        weight=wanted.weight,
        role=wanted.role,
        kv_events=wanted.kv_events,
        api_key=wanted.api_key,
        labels=dict(wanted.labels),
    )


def location_of(name: str) -> str:
    return f"/admin/v1/workers/{quote(name, safe='')}"


def unknown_worker(name: str) -> AdminError:
    """Return 404: there is no worker with this id."""
    return not_found(f"worker {name!r}", "GET /admin/v1/workers lists all; ids are host:port")
