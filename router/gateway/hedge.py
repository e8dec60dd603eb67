"""Hedging the first event: a second worker gets a request whose first one has not begun to answer in time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from router.config.model import HedgingConfig
from router.errors import RequestError
from router.gateway.attempt import Attempt
from router.gateway.paths import Route
from router.gateway.phases import Phase
from router.gateway.relay import Relay
from router.gateway.rewrites import Outgoing
from router.gateway.upstream import WorkerConnection
from router.gateway.wire import ResponseHead
from router.placement.lifecycle_events import FailurePhase, Request
from router.placement.tickets import Ticket

if TYPE_CHECKING:
    from router.gateway.tries import Tries
    from router.gateway.tunnel import Tunnel


class Hedging:
    """Which requests may be hedged, and after how long."""

    __slots__ = ("_paths", "after_s")

    def __init__(self, config: HedgingConfig) -> None:
        self._paths = frozenset(config.paths)
        self.after_s = config.after_s

    def wants(self, route: Route, request: Request) -> bool:
        """Whether the first event of `request` may be hedged. The first byte of an answer that is generated whole is
        its end: to hedge that is to do the work twice."""
        if route.pattern not in self._paths or request.pinned is not None:
            return False
        return request.stream or not route.by_prefix


class Hedge:
    """A second attempt beside an exchange's first, from the moment it is planned.

    To its attempt it is what the exchange is to the first one (`attempt.Owner`), with a phase and a relay of its own.
    Whichever attempt sees the first real event has won, and the exchange goes on with that one alone.
    """

    __slots__ = (
        "_timer",
        "_tries",
        "attempt",
        "client",
        "head",
        "phase",
        "phase_began_s",
        "plane",
        "relay",
        "request_id",
        "ticket",
        "tunnel",
        "upgrade",
        "withheld",
    )

    def __init__(self, tries: Tries, after_s: float) -> None:
        self._tries = tries
        self.plane = tries.plane
        self.client = tries.client
        self.head = tries.head
        self.request_id = tries.request_id
        self.withheld = tries.withheld
        self.upgrade = False
        self.tunnel: Tunnel | None = None
        self.phase = Phase.WORKER
        self.phase_began_s = 0.0
        self.ticket: Ticket | None = None
        self.attempt: Attempt | None = None
        self.relay: Relay = tries.relay  # until there is an attempt
        self._timer: asyncio.TimerHandle | None = self.plane.loop.call_later(after_s, self._begin)

    @property
    def whole(self) -> Tries:
        """The exchange."""
        return self._tries

    @property
    def running(self) -> bool:
        """Whether a second worker has the request."""
        return self.attempt is not None

    def _begin(self) -> None:
        self._timer = None
        tries, plane = self._tries, self.plane
        try:
            first = tries.ticket if tries.awaited is not None and tries.within() is None else None
            ticket = plane.dispatcher.hedge(first, plane.time()) if first is not None else None
            if ticket is None:
                return
            self.ticket = ticket
            self.relay = Relay(self.client, plane.time, self.head, plane.cors.enabled, tries.progressed)
            self.commented()
            self.attempt = Attempt(self, ticket)
            self.attempt.begin()
        except RequestError:
            return  # it may go to no other worker now
        except Exception:
            self.crashed()

    def commented(self) -> None:
        """What the client has seen so far, it has seen of both."""
        if self.relay is not self._tries.relay:
            seen = self._tries.relay
            self.relay.out, self.relay.status, self.relay.response_bytes = seen.out, seen.status, seen.response_bytes

    def cancel(self) -> None:
        """The first attempt answers, or nobody is to answer any more: the second worker is let go at once."""
        if self._timer is not None:
            self._timer.cancel()
        attempt, self.attempt = self.attempt, None
        if attempt is not None and self.ticket is not None:
            attempt.let_go(reusable=False)
            self.plane.dispatcher.lost(self.ticket, self.plane.time())
            self.plane.metrics.hedged("lost")
            self.relay.close()

    # to its attempt

    def enter(self, phase: Phase) -> None:
        """Begin a phase. The exchange's own limits go on; this one's count if it takes over."""
        self.phase = phase
        self.phase_began_s = self.plane.time()

    def outgoing(self, ticket: Ticket) -> Outgoing:
        """What goes to the second worker."""
        return self._tries.outgoing(ticket)

    def replaceable(self, phase: FailurePhase) -> bool:
        """The first attempt goes on in any case."""
        return True

    def attempt_failed(self, phase: FailurePhase, reason: str, retry_after_s: float | None = None) -> None:
        """The second attempt is out of the race."""
        self.attempt = None
        self.relay.close()
        self._tries.hedge_failed(self, phase, reason, retry_after_s)

    def opened(self, response: ResponseHead) -> None:
        """The first real event is the second worker's."""
        self._tries.hedge_won(self)
        self._tries.opened(response)

    def answered(self, response: ResponseHead) -> None:
        """The second worker's answer is complete."""
        if self.attempt is not None:  # behind comments an answer that is no stream is not opened before
            self._tries.hedge_won(self)
        self._tries.answered(response)

    def error_answered(self, response: ResponseHead) -> None:
        """The first attempt goes on, so it is not passed on."""
        if self.attempt is not None:
            self.attempt.let_go(reusable=True)
        self.attempt_failed(FailurePhase.ANSWERED, f"HTTP {response.status}")

    def answer_lost(self, reason: str, broke_http: bool) -> None:
        """Nothing of it has been let through, or the exchange would have been told."""
        self.attempt_failed(FailurePhase.SENT, reason)

    def switch_protocols(self, response: ResponseHead, connection: WorkerConnection) -> None:
        """No upgrade is ever asked for here."""
        self.attempt_failed(FailurePhase.SENT, "unexpected 101")

    def crashed(self) -> None:
        """A defect of ours, called from an `except` block."""
        self._tries.crashed()
