"""The results of the dispatcher: a ticket for a placed request, or held, queued or rejected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from policies.view import RequestView, Residency, WorkerId
from router.errors import ErrorKind, RequestError
from router.placement.decision_log.decisions import DecisionRecord
from router.placement.fleet.endpoints import Candidate, FleetEndpoint
from router.placement.load.running import LoadReservation
from router.placement.load.worker_load import Situation, WorkerLoad
from router.placement.policies.shadow import Sample
from router.placement.request import FailurePoint, Request

Counts: TypeAlias = dict[str, int]
"""How many requests and attempts had which outcome. The parts of placement count into one dictionary."""
RETRY_AFTER_S = 1.0
"""Retry-After if no worker gave one. By then a probe has updated the workers' state."""


@dataclass(slots=True, eq=False, repr=False)
class Ticket:
    """One attempt at one request, placed on `candidate` with its load reserved there.

    `view` is what the policy received. A ticket ends with `Tickets.finished`, `failed`, `cancelled` or
    `Dispatcher.retry`; later events are ignored.
    """

    request: Request
    view: RequestView
    load: WorkerLoad
    reservation: LoadReservation
    record: DecisionRecord
    residency: Residency = Residency.UNKNOWN
    situation: Situation | None = None
    shadow: Sample | None = None
    """What shadow policies decided for the request, if they saw it."""
    received: bool = False
    """The prompt's KV cache comes from another worker, the context counts as decoding, and there is no first token
    yet."""
    moved_tokens: int = 0
    """Tokens of the prompt whose KV cache comes from another worker."""
    prefill: Ticket | None = None
    """The attempt that computes the prompt for this one, which is the decode of a KV handover."""
    trial: bool = False
    tried: tuple[str, ...] = ()
    """Endpoints of earlier attempts."""
    sent_failures: int = 0
    """Earlier attempts that failed after the request had been sent."""
    refusal_s: float | None = None
    """Longest Retry-After of earlier attempts."""
    suspect: tuple[FleetEndpoint, str] | None = None
    """The endpoint that answered the previous attempt with a server error, and the error."""
    events: int = 0
    """Events that the stream has brought so far."""
    output_tokens: int | None = None
    """The length of a complete answer; None while it is not known."""
    turn: int = 0
    """The number of the turn in its session, from 1; 0 while there is no `TrafficObserver`."""
    earlier_tokens: int = 0
    """The length of the prompt of the turn before; 0 for a first turn."""
    stayed: bool = False
    """The turn before had the same worker."""
    ended: bool = False
    id: int = field(init=False)
    candidate: Candidate = field(init=False)
    attempt: int = field(init=False)
    """Counts from 1."""
    predicted_cached_tokens: int | None = field(init=False)
    """None if the candidate's cache or the prompt is unknown."""

    def __post_init__(self) -> None:
        self.id, self.attempt = self.record.ticket_id, self.record.attempt
        self.candidate, self.predicted_cached_tokens = self.load.candidate, self.record.predicted_cached_tokens

    def decode_s(self, now_s: float) -> float | None:
        """Return the time since the first token; None if it was not visible."""
        ttft_s = self.record.ttft_s
        return None if ttft_s is None else now_s - self.reservation.at_s - ttft_s


@dataclass(frozen=True, slots=True)
class Queued:
    """No candidate is ready now, but one may become so: wait for `Fleet.on_change`, then dispatch again.

    `at_limit`: all are at their limit of reserved requests, so wait for the end of one.
    """

    reason: str
    at_limit: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """The policy holds the request: dispatch again at `until_s`.

    Dispatch earlier when `worker`, if given, has no prefill left (`Tickets.on_prefills_done`).
    """

    worker: WorkerId | None
    until_s: float


@dataclass(frozen=True, slots=True)
class NoRoom:
    """No worker has room for the request now. `record` is what was seen; nothing is reserved."""

    record: DecisionRecord


@dataclass(frozen=True, slots=True)
class Reject:
    """The request cannot be served; answer the client with `error`.

    `at_limit`: every worker is at its limit of reserved requests.
    """

    error: RequestError
    at_limit: bool = False


_NO_WORKER: Final = frozenset({ErrorKind.OVERLOADED, ErrorKind.MODEL_NOT_FOUND})


def new_counts() -> Counts:
    return dict.fromkeys(("dispatched", "queued", "rejected", "retried", "finished", "cancelled", "failed"), 0)


def lacks_worker(result: Queued | Reject) -> bool:
    """Return whether no worker of the model can take the request now, so that one of a fallback may."""
    return isinstance(result, Queued) or result.error.kind in _NO_WORKER


def gave_up(point: FailurePoint, reason: str, refusal_s: float | None) -> Reject:
    """Return the result when no worker is left to try. `refusal_s` is the longest Retry-After of the workers tried."""
    retry_after_s = RETRY_AFTER_S if refusal_s is None else refusal_s
    if point is FailurePoint.LOCAL:
        message = f"The gateway cannot open another connection: {reason}; try again later."
        return Reject(RequestError(ErrorKind.EXHAUSTED, message, retry_after_s=retry_after_s))
    if point is FailurePoint.STREAM:
        return Reject(RequestError(ErrorKind.WORKER_DIED_IN_STREAM, f"The worker died in mid-stream: {reason}."))
    if point is FailurePoint.REFUSED:
        message = "Every worker that was tried refused the request for load; try again later."
        return Reject(RequestError(ErrorKind.OVERLOADED, message, retry_after_s=retry_after_s))
    message = f"The worker failed before it answered, and no other could take over: {reason}."
    return Reject(RequestError(ErrorKind.WORKER_FAILED, message, retry_after_s=retry_after_s))


def full(limit: int) -> Reject:
    message = f"Every worker for this model has {limit} requests in progress, the limit; try again later."
    return Reject(RequestError(ErrorKind.OVERLOADED, message, retry_after_s=RETRY_AFTER_S), at_limit=True)
