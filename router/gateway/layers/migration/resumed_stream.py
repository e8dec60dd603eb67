"""The legs after a death: what plans of the flow do to let an answer go on, or begin again, at another worker."""

from __future__ import annotations

import math
from typing import Final, NamedTuple, Protocol

from router.gateway.flow.plan import PlannedLeg, ResumingPlan
from router.gateway.layers.migration.continuation_body import ContinuationBody
from router.gateway.layers.migration.later_leg import LaterLeg
from router.gateway.layers.migration.leg_filter import LegFilter
from router.gateway.layers.migration.permits import Permits
from router.gateway.layers.migration.restarted_leg import RestartedLeg
from router.gateway.layers.migration.tracked_stream import TrackedStream
from router.placement.decision_log.decisions import DecisionRecord, Seam
from router.placement.request import Request, Usage
from router.placement.tickets import Held, Ticket
from router.requests.outgoing import OutgoingBody
from router.requests.queues.request import WaitingRequest

RESUMED, FAILED, LEFT = "resumed", "failed", "left"
_LEG: Final = PlannedLeg("resumed", collects=False, limit_s=math.inf)
_TURN: Final = Held(None, math.inf)


class ResumingRequest(Protocol):
    """The request whose answer goes on: `router.gateway.layers.migration.layer.MigrationRewrite`."""

    @property
    def permits(self) -> Permits: ...

    def may_go_on(self) -> bool: ...

    def settled(self, death: Death) -> None:
        """Count what became of the leg."""


class Death(NamedTuple):
    """The end of a leg at the endpoint `lost`, by its decision `record`, and when the last byte of its answer came."""

    lost: str
    record: DecisionRecord
    seam: Seam
    read_s: float


class LegAfterDeath(ResumingPlan):
    """One leg after a death. `request` is placed as any other, and not at the endpoint that is lost.

    The permit limits how many prompts of such legs are computed at once.
    """

    __slots__ = ("_began", "_death", "_of", "_permit", "_settled")

    def __init__(self, of: ResumingRequest, request: Request, death: Death) -> None:
        super().__init__(request, death.lost)
        self._of = of
        self._death = death
        self._began = self._permit = self._settled = False

    # the turn

    def turn(self) -> Held | None:
        return None if self._of.permits.free else _TURN

    def waits(self, request: WaitingRequest, held: Held) -> bool:
        if held is not _TURN:
            return False
        self._of.permits.enter(request, self.request.arrived_s)
        return True

    def leaves(self, request: WaitingRequest) -> None:
        self._of.permits.leave(request)

    def _give_back(self) -> None:
        if self._permit:
            self._permit = False
            self._of.permits.give_back()

    # the attempt

    def leg(self, ticket: Ticket, now_s: float) -> PlannedLeg:
        if not self._permit:
            self._permit = True
            self._of.permits.take()
        seam = self._death.seam
        seam.to_worker = ticket.candidate.id
        for record in (self._death.record, ticket.record):
            record.add_seam(seam)
        ticket.record.migration = self._death.record.migration
        return _LEG

    def depends_at(self, ticket: Ticket) -> bool:
        """Return whether the answer has not begun: a 4xx may be the gateway's fault then, and is no answer."""
        return not self._began

    def opened(self, ticket: Ticket, now_s: float) -> None:
        self._began = True
        self._give_back()

    # the end

    def on_text(self) -> None:
        self._settle(RESUMED)

    def _settle(self, outcome: str) -> None:
        if not self._settled:
            self._settled = True
            self._death.record.add_seam(self._death.seam)
            self._death.seam.outcome = outcome
            self._of.settled(self._death)

    def client_left(self) -> None:
        self._settle(LEFT)

    def end(self, now_s: float) -> None:
        self._give_back()
        self._settle(FAILED)


class ResumedStream(LegAfterDeath):
    """The rest of an answer, by the ids P + G."""

    __slots__ = ("_body", "_ended", "_leg", "_stream")

    def __init__(
        self,
        of: ResumingRequest,
        request: Request,
        death: Death,
        stream: TrackedStream,
        body: ContinuationBody,
        ended: LegFilter,
    ) -> None:
        """`ended` is the filter of the leg before."""
        super().__init__(of, request, death)
        self._stream = stream
        self._body = body
        self._ended = ended
        self._leg: LaterLeg | None = None

    def own_body(self, ticket: Ticket, now_s: float) -> OutgoingBody | None:
        stream, ended = self._stream, self._ended
        stream.cut()  # not before: an answer that leaves its worker may have to stay there
        ids = stream.ids()
        self._leg = LaterLeg(stream, ended.inner, self._of.may_go_on, ids, self.on_text, holds=ended.holds)
        return OutgoingBody(self._body.of(ids, stream.clean), self._leg)

    def finished(self, ticket: Ticket, usage: Usage) -> Usage:
        """Return what the last worker has done: the usage of the answer is that of all legs."""
        return Usage(None, None if self._leg is None else self._leg.own_tokens)


class RestartedStream(LegAfterDeath):
    """A whole answer, behind the role that the client has. Any request can begin again so, also one without ids."""

    __slots__ = ("_made", "_preamble")

    def __init__(
        self, of: ResumingRequest, request: Request, death: Death, made: OutgoingBody, preamble: bytes
    ) -> None:
        """`made` is what the first worker got, and `preamble` what the client has."""
        super().__init__(of, request, death)
        self._made: OutgoingBody | None = made
        self._preamble = preamble

    def own_body(self, ticket: Ticket, now_s: float) -> OutgoingBody | None:
        made = self._made
        assert made is not None
        return OutgoingBody(made.body, RestartedLeg(self._preamble, made.answer_filter, self.on_text))

    def opened(self, ticket: Ticket, now_s: float) -> None:
        super().opened(ticket, now_s)
        self._made = None
