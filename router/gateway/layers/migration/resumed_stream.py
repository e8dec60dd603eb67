"""The legs after a death: what plans of the flow do to let an answer go on, or begin again, at another worker."""

from __future__ import annotations

import math
from array import array
from typing import Final, Protocol

from router.gateway.flow.plan import PlannedLeg, ResumingPlan
from router.gateway.layers.migration.continuation_body import ContinuationBody
from router.gateway.layers.migration.later_leg import LaterLeg
from router.gateway.layers.migration.permits import Permits
from router.gateway.layers.migration.restarted_leg import RestartedLeg
from router.gateway.layers.migration.tracked_stream import TrackedStream
from router.placement.request import Request, Usage
from router.placement.tickets import Held, Ticket
from router.requests.outgoing import AnswerFilter, OutgoingBody
from router.requests.queues.request import WaitingRequest

RESUMED, FAILED = "resumed", "failed"
_LEG: Final = PlannedLeg("resumed", collects=False, limit_s=math.inf)
_TURN: Final = Held(None, math.inf)


class ResumingRequest(Protocol):
    """The request whose answer goes on: `router.gateway.layers.migration.layer.MigrationRewrite`."""

    def may_go_on(self) -> bool: ...

    def settled(self, trigger: str, outcome: str, gap_s: float | None) -> None:
        """Count what became of the leg. `gap_s` is the time that the client waited for the next text."""

    def time(self) -> float: ...


class LegAfterDeath(ResumingPlan):
    """One leg after a death. `request` is placed as any other, and not at `lost`.

    The permit limits how many prompts of such legs are computed at once.
    """

    __slots__ = ("_began", "_of", "_permit", "_permits", "_settled", "_since_s", "_trigger")

    def __init__(
        self, of: ResumingRequest, request: Request, lost: str, permits: Permits, trigger: str, since_s: float
    ) -> None:
        """`since_s` is when the last byte of the answer came."""
        super().__init__(request, lost)
        self._of = of
        self._permits = permits
        self._permit = False
        self._trigger = trigger
        self._since_s = since_s
        self._began = self._settled = False

    # the turn

    def turn(self) -> Held | None:
        if self._permit:
            return None
        self._permit = self._permits.take()
        return None if self._permit else _TURN

    def waits(self, request: WaitingRequest, held: Held) -> bool:
        if held is not _TURN:
            return False
        self._permits.enter(request, self.request.arrived_s)
        return True

    def leaves(self, request: WaitingRequest) -> None:
        self._permits.leave(request)

    def _give_back(self) -> None:
        if self._permit:
            self._permit = False
            self._permits.give_back()

    # the attempt

    def leg(self, ticket: Ticket, now_s: float) -> PlannedLeg:
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
            gap_s = self._of.time() - self._since_s if outcome == RESUMED else None
            self._of.settled(self._trigger, outcome, gap_s)

    def end(self, now_s: float) -> None:
        self._give_back()
        self._settle(FAILED)


class ResumedStream(LegAfterDeath):
    """The rest of an answer, by the ids P + G."""

    __slots__ = ("_body", "_holds", "_ids", "_inner", "_leg", "_stream")

    def __init__(
        self,
        of: ResumingRequest,
        request: Request,
        lost: str,
        permits: Permits,
        trigger: str,
        since_s: float,
        stream: TrackedStream,
        ids: array[int],
        body: ContinuationBody,
        inner: AnswerFilter | None,
        *,
        holds: bool,
    ) -> None:
        super().__init__(of, request, lost, permits, trigger, since_s)
        self._stream = stream
        self._ids = ids
        self._body = body
        self._inner = inner
        self._holds = holds
        self._leg: LaterLeg | None = None

    def own_body(self, ticket: Ticket, now_s: float) -> OutgoingBody | None:
        given = len(self._stream.output)
        self._leg = leg = LaterLeg(
            self._stream, self._inner, self._of.may_go_on, self._ids, self.on_text, holds=self._holds
        )
        return OutgoingBody(self._body.of(self._ids, given), leg)

    def finished(self, ticket: Ticket, usage: Usage) -> Usage:
        """Return what the last worker has done: the usage of the answer is that of all legs."""
        return Usage(None, None if self._leg is None else self._leg.own_tokens)


class RestartedStream(LegAfterDeath):
    """A whole answer, behind the role that the client has. Any request can begin again so, also one without ids."""

    __slots__ = ("_made", "_preamble")

    def __init__(
        self,
        of: ResumingRequest,
        request: Request,
        lost: str,
        permits: Permits,
        trigger: str,
        since_s: float,
        made: OutgoingBody,
        preamble: bytes,
    ) -> None:
        """`made` is what the first worker got, and `preamble` what the client has."""
        super().__init__(of, request, lost, permits, trigger, since_s)
        self._made = made
        self._preamble = preamble

    def own_body(self, ticket: Ticket, now_s: float) -> OutgoingBody | None:
        leg = RestartedLeg(self._preamble, self._made.answer_filter, self.on_text)
        return OutgoingBody(self._made.body, leg)
