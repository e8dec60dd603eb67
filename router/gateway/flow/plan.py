"""A plan of legs: how workers share one request.

A request without a plan is one leg: one attempt at a time, whose answer goes to the client. The legs of a plan run one
after the other (a prefill, then a decode), beside each other (a prefill while the decode waits for its KV cache), or
read from another worker (a pull). A leg can also follow a death: then the answer goes on. The flow's table runs the
legs that follow each other; a leg beside them belongs to the plan. The answer of the last leg is the client's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias

from router.gateway.flow.outcomes import Failure, Outcome
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.request import Request, Usage
from router.placement.tickets import Held, Ticket
from router.requests.outgoing import OutgoingBody
from router.requests.placing import SharedPlacement
from router.requests.queues.request import WaitingRequest


class PlannedLeg(NamedTuple):
    """One attempt of a plan.

    With `collects` its answer is kept whole for the plan; otherwise it goes to the client. `limit_s` is the longest
    time until its first event.
    """

    name: str
    collects: bool
    limit_s: float


class PlannedAttempt(Protocol):
    """An attempt as plans see it: `router.gateway.flow.attempt.attempt.Attempt`."""

    ticket: Ticket
    failure: Failure | None
    limit_s: float
    since_s: float

    @property
    def sent(self) -> bool: ...
    @property
    def status(self) -> int: ...
    @property
    def content(self) -> bytes: ...
    def begin(self, *, fresh: bool = False) -> None: ...
    def pause(self, paused: bool) -> None: ...
    def give_up(self, reason: str, *, late: bool = False) -> None: ...
    def release(self, *, reusable: bool) -> None: ...


class PlanInbox(Protocol):
    def post(self, outcome: Outcome, attempt: Any) -> None: ...


class PlanHost(Protocol):
    """The request that a plan is for, as the plan sees it: `router.gateway.flow.driver.RequestDriver`."""

    def attempt_beside(self, ticket: Ticket, inbox: PlanInbox) -> PlannedAttempt:
        """Return an attempt beside the client's, not begun, whose answer is collected; `inbox` gets its outcomes."""

    def suspect(self, attempt: Any, *, lost: bool) -> None:
        """Note that the request may have crashed the attempt's worker. `lost`: the connection broke."""

    def beside_ended(self, problem: str | None) -> None:
        """Go on, because nothing runs beside the client's leg any more. With a `problem` that leg is given up."""


class After(Enum):
    """What follows a failed attempt of a plan that no other leg follows."""

    USUAL = 0
    """The usual retry: the attempt is not released yet."""
    ALONE = 1
    """One worker is asked to serve the whole request."""


Within: TypeAlias = Callable[[tuple[str, ...]], frozenset[str] | None]
"""Returns the endpoints that the request may go to, without those that failed; None for all. Raises RequestError."""


class RequestPlan(SharedPlacement):
    """How workers share one request. The methods of this class are those of a plan with one leg and nothing beside."""

    __slots__ = ()

    @property
    def first(self) -> Ticket:
        """The placement of the first leg."""
        raise NotImplementedError

    @property
    def noted(self) -> Ticket:
        """The placement by which the decision is known."""
        return self.first

    @property
    def sequence(self) -> int:
        """How many legs the flow's table runs, one after the other."""
        return 1

    def leg(self, ticket: Ticket, now_s: float) -> PlannedLeg:
        """Return what an attempt with this ticket is in the plan."""
        raise NotImplementedError

    def depends_at(self, ticket: Ticket) -> bool:
        """Return whether an attempt with this ticket gets another worker's KV cache, and its answer has not begun.

        Such a request is written once, and a 4xx may be the plan's fault.
        """
        return False

    # the turn

    def turn(self) -> Held | None:
        """Return what the request waits with until the plan offers it; None to place it now."""
        return None

    def waits(self, request: WaitingRequest, held: Held) -> bool:
        """Let a request wait for its turn. Return False if it waits for something else."""
        return False

    def leaves(self, request: WaitingRequest) -> None:
        """Note that the request does not wait for its turn, if it did."""

    # sending

    def worker_line(self, ticket: Ticket) -> bytes:
        """Return the header line that the request to the ticket's worker needs; empty if it needs none."""
        return b""

    def request_id(self, ticket: Ticket) -> bytes | None:
        """Return the X-Request-Id of the request to the ticket's worker; None for the client's own."""
        return None

    def sent_limit_s(self, ticket: Ticket, now_s: float) -> float | None:
        """Return the longest time until the first event of an attempt that is written now; None to keep its limit."""
        return None

    def own_body(self, ticket: Ticket, now_s: float) -> OutgoingBody | None:
        """Return what the ticket's worker gets in place of the client's request; None for the client's own."""
        return None

    def added_to(self, made: OutgoingBody, ticket: Ticket, now_s: float) -> OutgoingBody:
        """Return the request to the ticket's worker with what the plan adds."""
        return made

    # beside the client's leg

    def begin_beside(self, host: PlanHost) -> None:
        """Start the legs that run beside the first one."""

    @property
    def beside(self) -> FleetEndpoint | None:
        """The endpoint of a leg that runs beside the client's."""
        return None

    def give_up_beside(self, reason: str) -> None:
        """Give up the leg that runs beside the client's, because its worker is gone."""

    def holds_back(self, outcome: Outcome, attempt: PlannedAttempt) -> bool:
        """Return whether an outcome of the client's leg has to wait for a leg beside it."""
        return False

    def beside_ended(self, attempt: PlannedAttempt, problem: str | None, now_s: float) -> Sequence[Outcome]:
        """Note that nothing runs beside the client's leg any more, whose attempt this is.

        Return its outcomes that waited, in order; none if it is given up because of a `problem`.
        """
        return ()

    # events

    def answered(self, attempt: PlannedAttempt, now_s: float) -> None:
        """Note the complete answer of a leg that is not the last, and release it."""

    def next_leg(self, now_s: float) -> Ticket | None:
        """Return the placement of the leg that follows; None to serve the request on one worker."""
        return None

    def failed(self, attempt: PlannedAttempt, within: Within, now_s: float) -> Ticket | After:
        """Return what follows a failed attempt. It is released, unless the usual retry follows."""
        return After.USUAL

    def opened(self, ticket: Ticket, now_s: float) -> None:
        """Note that the answer of the client's leg begins."""

    def finished(self, ticket: Ticket, usage: Usage) -> Usage:
        """Note a complete answer. Return the part of its usage that describes the ticket's worker."""
        return usage

    def client_left(self) -> None:
        """Note that the client has closed the connection. The end follows."""

    def end(self, now_s: float) -> None:
        """Release what the plan still holds. Called when the request ends, and before it is served on one worker."""


class ResumingPlan(RequestPlan):
    """A plan of one leg, by which an answer goes on after its worker has died. What it says is the rest of the answer.

    `request` is placed in place of the client's, and not at the endpoint `lost`. `ticket` is its placement, if that was
    made while the answer still came from its worker.
    """

    __slots__ = ("lost", "request", "ticket")

    def __init__(self, request: Request, lost: str) -> None:
        self.request = request
        self.lost = lost
        self.ticket: Ticket | None = None
