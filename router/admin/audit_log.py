"""The audit: every change that was asked of the admin port, with who asked, from where, and the outcome.

Each entry is logged and kept in a ring. Requests without a valid token have a small ring of their own, and so have
registrations, whose tokens lie on the workers' hosts: neither can push out the entries of operators.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from backends.foreign_json import read_json
from router.admin.documents import DifferenceDocument, Shape
from router.admin.http.problems import AdminError
from router.config.model import without_secrets

KEPT = 1_000
"""Entries of known callers that are kept, and of all callers where the port needs no token."""
STRANGERS_KEPT = 100
"""Entries that are kept of requests which the guard refused."""
REGISTRATIONS_KEPT = 1_000
"""Entries that are kept of registrations."""
MOST_CHANGE_BYTES = 4_096
"""A longer body is kept as its size alone."""
MOST_CHARACTERS = 500
"""A longer path or detail is cut."""
_IN_EFFECT = frozenset({"worker_busy", "worker_not_ready"})
"""Codes of answers to a change that was made, and that has not shown its effect in the time to wait."""

Serve = Callable[[Request], Awaitable[Response]]
Record = Callable[[Request, str, "AuditOutcome", float], None]
"""Takes a request that has ended, its operation, the outcome and the seconds that it took."""

log = logging.getLogger("warmroute.audit")


class AuditEntry(Shape):
    """One change that was asked of the admin port.

    `who` is the name of the token, null if the port needs none or the request has no valid one. `peer` is the address
    of the client. `operation` is null if the request was refused before its operation was known. `change` is the body
    without secrets, or its size if it is long. `differences` are the settings that changed, and `version` is the ETag
    of the desired state afterwards. `outcome` is done, dry_run (nothing was to change), refused, failed, or interrupted
    (no answer was sent). `code` and `detail` are those of the problem document.
    """

    number: int
    at: str
    who: str | None
    peer: str | None
    operation: str | None
    method: str | None
    target: str | None
    change: Any
    differences: list[DifferenceDocument]
    version: str | None
    outcome: str
    status: int | None
    code: str | None
    detail: str | None
    duration_s: float


@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """The result of one request; `status` is None if it ended without an answer."""

    status: int | None
    code: str | None = None
    detail: str | None = None
    version: str | None = None
    differences: Sequence[DifferenceDocument] = ()
    dry: bool = False

    @property
    def name(self) -> str:
        if self.status is None:
            return "interrupted"
        if self.status < 400 or self.code in _IN_EFFECT:
            return "dry_run" if self.dry else "done"
        return "failed" if self.status >= 500 else "refused"


class AuditLog:
    """The latest entries. `wall` gives the time of an entry."""

    def __init__(self, wall: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._known: deque[AuditEntry] = deque(maxlen=KEPT)
        self._strangers: deque[AuditEntry] = deque(maxlen=STRANGERS_KEPT)
        self._registrations: deque[AuditEntry] = deque(maxlen=REGISTRATIONS_KEPT)
        self._count = 0
        self._wall = wall

    def ended(self, request: Request, operation: str, outcome: AuditOutcome, duration_s: float) -> None:
        """Record a request that has ended. `request.state.change` is a summary of its body."""
        self._known.append(self._entry(request, operation, outcome, duration_s))
        _log(self._known[-1])

    def registered(self, request: Request, operation: str, outcome: AuditOutcome, duration_s: float) -> None:
        self._registrations.append(self._entry(request, operation, outcome, duration_s))
        _log(self._registrations[-1])

    def refused(self, request: Request, error: AdminError) -> None:
        self._strangers.append(self._entry(request, None, _refused_by(error), 0.0))
        _log(self._strangers[-1])

    def _entry(self, request: Request, operation: str | None, outcome: AuditOutcome, duration_s: float) -> AuditEntry:
        self._count += 1
        caller = getattr(request.state, "caller", None)
        return AuditEntry(
            number=self._count,
            at=self._wall().isoformat(timespec="milliseconds"),
            who=None if caller is None else caller.name,
            peer=_peer(request),
            operation=operation,
            method=request.method,
            target=_target(request),
            change=getattr(request.state, "change", None),
            differences=list(outcome.differences),
            version=outcome.version,
            outcome=outcome.name,
            status=outcome.status,
            code=outcome.code,
            detail=outcome.detail,
            duration_s=round(duration_s, 6),
        )

    def entries(self, before: int | None) -> list[AuditEntry]:
        """Return the entries, newest first; with `before`, those with a smaller number."""
        kept = (*self._known, *self._strangers, *self._registrations)
        entries = sorted(kept, key=lambda entry: entry.number, reverse=True)
        return entries if before is None else [entry for entry in entries if entry.number < before]

    def statistics(self) -> dict[str, int]:
        kept = len(self._known) + len(self._strangers) + len(self._registrations)
        return {"kept": kept, "recorded": self._count}


def audited(serve: Serve, operation: str, record: Record) -> Serve:
    """Return `serve` with an entry for each request, apart from renewals."""

    async def recorded(request: Request) -> Response:
        began_s = time.monotonic()
        outcome = AuditOutcome(None)
        try:
            response = await serve(request)
            outcome = _outcome_of(request, response)
            return response
        except AdminError as error:
            outcome = _refused_by(error)
            raise
        except ClientDisconnect:
            raise
        except Exception as error:
            outcome = AuditOutcome(500, "internal_error", type(error).__name__)
            raise
        finally:
            if not getattr(request.state, "renewal", False):
                record(request, operation, outcome, time.monotonic() - began_s)

    return recorded


def summary_of(body: Any) -> Any:
    """Return a body as plain values without secrets, or only its size if it is long."""
    plain = without_secrets(msgspec.to_builtins(body))
    size_bytes = len(msgspec.json.encode(plain))
    return plain if size_bytes <= MOST_CHANGE_BYTES else {"omitted_bytes": size_bytes}


def _refused_by(error: AdminError) -> AuditOutcome:
    return AuditOutcome(error.status, error.code, error.detail[:MOST_CHARACTERS])


def _outcome_of(request: Request, response: Response) -> AuditOutcome:
    if response.status_code < 400:
        version, differences = response.headers.get("etag"), getattr(request.state, "differences", ())
        dry = request.query_params.get("dry_run") == "true"
        return AuditOutcome(response.status_code, version=version, differences=differences, dry=dry)
    try:
        problem = read_json(response.body)
        return AuditOutcome(response.status_code, problem["code"], str(problem["detail"])[:MOST_CHARACTERS])
    except (msgspec.DecodeError, KeyError, TypeError):
        return AuditOutcome(response.status_code)


def _target(request: Request) -> str:
    query = request.url.query
    return f"{request.url.path}{'?' if query else ''}{query}"[:MOST_CHARACTERS]


def _peer(request: Request) -> str | None:
    """Return the address of the client, None on a Unix socket."""
    if request.client is None:
        return None
    host, port = request.client
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _log(entry: AuditEntry) -> None:
    fields = {name: value for name, value in msgspec.to_builtins(entry).items() if value not in (None, [])}
    fields.pop("at")
    fields |= {name: json.dumps(fields[name]) for name in ("change", "differences") if name in fields}
    log.log(logging.INFO if entry.outcome in ("done", "dry_run") else logging.WARNING, "admin change", extra=fields)
