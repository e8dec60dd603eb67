"""The prefill of a request whose decode worker already waits for its KV cache.

The flow knows only the decode attempt, whose answer is the client's. The prefill runs beside it, and may outlast the
request: a decode worker that has lost its client keeps the prompt's blocks until the prefill worker has written them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from router.gateway.flow.outcomes import Failure, Outcome
from router.gateway.flow.plan import PlanHost, PlannedAttempt
from router.gateway.last_look import LastLook
from router.gateway.layers.handover.prefill_peers import HandoverParts
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.request import FailurePoint, Usage
from router.placement.tickets import Ticket

log = logging.getLogger("warmroute.gateway")

_ANSWER_S: Final = 1.0
"""How long a decode's first event waits for the answer of its prefill, which has ended by then."""
_HELD_BACK: Final = frozenset({Outcome.OPENED, Outcome.ANSWERED})


class Handover(Protocol):
    """The handover as its prefill sees it."""

    prefill: Ticket

    @property
    def needed_to_free(self) -> bool: ...
    @property
    def nothing_handed_over(self) -> bool: ...
    def limit_s(self, ticket: Ticket, now_s: float) -> float: ...
    def prefilled(self, body: bytes, status: int, now_s: float) -> Usage: ...
    def finish_prefill(self, attempt: PlannedAttempt, usage: Usage, now_s: float) -> None: ...


class ConcurrentPrefill:
    """Runs the prefill, and holds the decode's answer back until the prefill has answered: the client's usage needs it.

    `host.beside_ended` is called once, with the reason for which the decode will get no KV cache, or None if it has it.
    """

    __slots__ = ("_attempt", "_handover", "_held_back", "_host", "_parts", "_tells", "_timer", "_waiting")

    def __init__(self, parts: HandoverParts, handover: Handover, host: PlanHost) -> None:
        self._parts = parts
        self._handover = handover
        self._host = host
        self._tells = True
        """False once the request goes on without the prefill, or knows of its end."""
        self._held_back: list[Outcome] = []
        self._timer: asyncio.TimerHandle | LastLook | None = None
        self._waiting: asyncio.TimerHandle | None = None
        """Runs while the decode's answer is held back."""
        self._attempt = host.attempt_beside(handover.prefill, self)

    def start(self) -> None:
        self._attempt.begin()
        self._arm()

    @property
    def endpoint(self) -> FleetEndpoint:
        return self._attempt.ticket.candidate.endpoint

    def give_up(self, reason: str) -> None:
        self._attempt.give_up(reason)

    def leave(self, *, finish: bool) -> None:
        """Go on without the request. Abort the prefill, unless the decode worker needs it to `finish`."""
        self._tells = False
        self._stop_waiting()
        if not finish or not self._handover.needed_to_free:
            self._disarm()
            self._attempt.release(reusable=False)
            self._parts.tickets.cancelled(self._attempt.ticket, self._parts.time())

    # the decode's answer

    def holds_back(self, outcome: Outcome, decode: PlannedAttempt) -> bool:
        if outcome not in _HELD_BACK:
            self._held_back.clear()
            return False
        if outcome not in self._held_back:
            self._held_back.append(outcome)
        if self._waiting is None:
            decode.pause(True)
            self._waiting = self._parts.loop.call_later(_ANSWER_S, self._end, None)
        return True

    def held_back(self) -> list[Outcome]:
        return self._held_back

    # the prefill's answer

    def post(self, outcome: Outcome, attempt: PlannedAttempt) -> None:
        """Take what the prefill tells."""
        if outcome is Outcome.MOVED:
            self._arm()
        elif outcome is Outcome.SUSPECTED or outcome is Outcome.BROKEN:
            self._host.suspect(attempt, lost=outcome is Outcome.BROKEN)
        elif outcome is Outcome.ANSWERED:
            self._answered(attempt)
        elif outcome is Outcome.CRASHED:
            log.exception("a prefill failed", extra={"request_id": attempt.ticket.request.id})
            attempt.failure = Failure(FailurePoint.LOCAL, "internal error")
            self._failed(attempt)
        else:
            self._failed(attempt)

    def _answered(self, attempt: PlannedAttempt) -> None:
        self._disarm()
        now_s = self._parts.time()
        usage = self._handover.prefilled(attempt.content, attempt.status, now_s)
        self._handover.finish_prefill(attempt, usage, now_s)
        attempt.release(reusable=True)
        self._end("the prefill handed nothing over" if self._handover.nothing_handed_over else None)

    def _failed(self, attempt: PlannedAttempt) -> None:
        self._disarm()
        attempt.release(reusable=True)
        failure = attempt.failure
        assert failure is not None
        now_s = self._parts.time()
        self._parts.tickets.failed(attempt.ticket, failure.point, now_s, failure.reason, failure.retry_after_s)
        self._end(None if self._held_back else f"the prefill failed: {failure.reason}")

    def _end(self, problem: str | None) -> None:
        self._stop_waiting()
        tells, self._tells = self._tells, False
        if tells:
            self._host.beside_ended(problem)

    # time

    def _arm(self) -> None:
        self._disarm()
        attempt = self._attempt
        limit_s = self._handover.limit_s(attempt.ticket, 0.0) if attempt.sent else self._parts.connect_s
        self._timer = self._parts.loop.call_later(limit_s, self._due)

    def _due(self) -> None:
        self._timer = LastLook(self._parts.loop, self._late)

    def _late(self) -> None:
        self._timer = None
        self._attempt.give_up("no answer in time" if self._attempt.sent else "connecting took too long", late=True)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
