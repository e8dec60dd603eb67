"""The results of the dispatcher: a ticket for a placed request, or held, queued or rejected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from policies.view import RequestView, Residency, WorkerId
from router.errors import ErrorKind, RequestError
from router.placement.decision_log.decisions import DecisionRecord
from router.placement.fleet.endpoints import Candidate, FleetEndpoint
from router.placement.learning.decode_step_time import WorkDone
from router.placement.load.running import LoadReservation
from router.placement.load.worker_load import Situation, WorkerLoad
from router.placement.policies.shadow import Sample
from router.placement.request import FailurePoint, Request

RETRY_AFTER_S = 1.0
"""Retry-After if no worker gave one. By then a probe has updated the workers' state."""


class Ticket:
    """One attempt at one request, placed on `candidate` with its load reserved there.

    `predicted_cached_tokens` is None if the candidate's cache or the prompt is unknown. `attempt` counts from 1. A
    ticket ends with `Dispatcher.finished`, `failed`, `cancelled` or `retry`; later events are ignored.
    """

    __slots__ = (
        "attempt",
        "candidate",
        "earlier_tokens",
        "ended",
        "events",
        "id",
        "load",
        "moved_tokens",
        "output_tokens",
        "predicted_cached_tokens",
        "prefill",
        "received",
        "record",
        "refusal_s",
        "request",
        "reservation",
        "residency",
        "sent_failures",
        "shadow",
        "situation",
        "stayed",
        "suspect",
        "trial",
        "tried",
        "turn",
        "view",
        "work_done",
    )

    def __init__(
        self,
        request: Request,
        view: RequestView,
        load: WorkerLoad,
        reservation: LoadReservation,
        record: DecisionRecord,
    ) -> None:
        self.id = record.ticket_id
        self.request = request
        self.view = view
        """The view of the request that the policy received."""
        self.load = load
        self.candidate: Candidate = load.candidate
        self.reservation = reservation
        self.record = record
        self.attempt = record.attempt
        self.residency = Residency.UNKNOWN
        self.predicted_cached_tokens = record.predicted_cached_tokens
        self.situation: Situation | None = None
        self.shadow: Sample | None = None
        """What shadow policies decided for the request, if they saw it."""
        self.work_done: WorkDone | None = None
        """The worker's work counters at the first token."""
        self.received = False
        """The prompt's KV cache comes from another worker, the context counts as decoding, and there is no first token
        yet."""
        self.moved_tokens = 0
        """Tokens of the prompt whose KV cache comes from another worker."""
        self.prefill: Ticket | None = None
        """The attempt that computes the prompt for this one, which is the decode of a KV handover."""
        self.trial = False
        self.tried: tuple[str, ...] = ()
        """Endpoints of earlier attempts."""
        self.sent_failures = 0
        """Earlier attempts that failed after the request had been sent."""
        self.refusal_s: float | None = None
        """Longest Retry-After of earlier attempts."""
        self.suspect: tuple[FleetEndpoint, str] | None = None
        """The endpoint that answered the previous attempt with a server error, and the error."""
        self.events = 0
        """Events that the stream has brought so far."""
        self.output_tokens: int | None = None
        """The length of a complete answer; None while it is not known."""
        self.turn = 0
        """The number of the turn in its session, from 1; 0 while the dispatcher has no `TrafficObserver`."""
        self.earlier_tokens = 0
        """The length of the prompt of the turn before; 0 for a first turn."""
        self.stayed = False
        """The turn before had the same worker."""
        self.ended = False

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

    Dispatch earlier when `worker`, if given, has no prefill left (`Dispatcher.on_prefills_done`).
    """

    worker: WorkerId | None
    until_s: float


@dataclass(frozen=True, slots=True)
class Reject:
    """The request cannot be served; answer the client with `error`.

    `at_limit`: every worker is at its limit of reserved requests.
    """

    error: RequestError
    at_limit: bool = False


_NO_WORKER: Final = frozenset({ErrorKind.OVERLOADED, ErrorKind.MODEL_NOT_FOUND})


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
