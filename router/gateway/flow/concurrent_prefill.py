"""The prefill of a request whose decode worker already waits for its KV cache.

The flow knows only the decode attempt, whose answer is the client's. The prefill runs beside it, and may outlast the
request: a decode worker that has lost its client keeps the prompt's blocks until the prefill worker has written them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from router.gateway.flow.attempt.attempt import Attempt
from router.gateway.flow.handover.handover import KvHandover
from router.gateway.flow.outbound import OutboundRequest
from router.gateway.flow.outcomes import Failure, Outcome
from router.gateway.flow.services import RequestServices
from router.gateway.last_look import LastLook
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.request import FailurePoint

log = logging.getLogger("warmroute.gateway")

_ANSWER_S: Final = 1.0
"""How long a decode's first event waits for the answer of its prefill, which has ended by then."""
_HELD_BACK: Final = frozenset({Outcome.OPENED, Outcome.ANSWERED})


class ConcurrentPrefill:
    """Runs the prefill, and holds the decode's answer back until the prefill has answered: the client's usage needs it.

    `ended` is called once, with the reason for which the decode will get no KV cache, or None if it has it.
    """

    __slots__ = ("_attempt", "_ended", "_handover", "_held_back", "_outbound", "_services", "_timer", "_waiting")

    def __init__(
        self,
        services: RequestServices,
        outbound: OutboundRequest,
        handover: KvHandover,
        ended: Callable[[str | None], None],
    ) -> None:
        self._services = services
        self._outbound = outbound
        self._handover = handover
        self._ended: Callable[[str | None], None] | None = ended
        self._held_back: list[Outcome] = []
        self._timer: asyncio.TimerHandle | LastLook | None = None
        self._waiting: asyncio.TimerHandle | None = None
        """Runs while the decode's answer is held back."""
        self._attempt = Attempt(
            services.attempts, outbound, handover.prefill, self._reported, commented=False, paused=False, collects=True
        )

    def start(self) -> None:
        for layer in self._outbound.layers:
            layer.attempted(self._attempt, self._services.time(), "prefill")
        self._attempt.begin()
        self._arm()

    @property
    def endpoint(self) -> FleetEndpoint:
        return self._attempt.ticket.candidate.endpoint

    def give_up(self, reason: str) -> None:
        self._attempt.give_up(reason)

    def leave(self, *, finish: bool) -> None:
        """Go on without the request. Abort the prefill, unless the decode worker needs it to `finish`."""
        self._ended = None
        self._stop_waiting()
        if not finish or not self._handover.needed_to_free:
            self._disarm()
            self._services.placements.cancel(self._attempt, self._services.time())

    # the decode's answer

    def holds_back(self, outcome: Outcome, decode: Attempt) -> bool:
        if outcome not in _HELD_BACK:
            self._held_back.clear()
            return False
        if outcome not in self._held_back:
            self._held_back.append(outcome)
        if self._waiting is None:
            decode.pause(True)
            self._waiting = self._services.loop.call_later(_ANSWER_S, self._end, None)
        return True

    def held_back(self) -> list[Outcome]:
        return self._held_back

    # the prefill's answer

    def _reported(self, outcome: Outcome, attempt: Attempt) -> None:
        if outcome is Outcome.MOVED:
            self._arm()
        elif outcome is Outcome.SUSPECTED:
            self._services.placements.suspect(self._outbound, attempt)
        elif outcome is Outcome.ANSWERED:
            self._answered(attempt)
        elif outcome is Outcome.CRASHED:
            log.exception("a prefill failed", extra={"request_id": self._outbound.id.decode("latin-1")})
            attempt.failure = Failure(FailurePoint.LOCAL, "internal error")
            self._failed(attempt)
        else:
            self._failed(attempt)

    def _answered(self, attempt: Attempt) -> None:
        self._disarm()
        now_s = self._services.time()
        usage = self._handover.prefilled(attempt.content, attempt.status, now_s)
        self._services.placements.finish_prefill(self._outbound, attempt, usage, now_s)
        attempt.let_go(reusable=True)
        self._end("the prefill handed nothing over" if self._handover.nothing_handed_over else None)

    def _failed(self, attempt: Attempt) -> None:
        self._disarm()
        attempt.let_go(reusable=True)
        self._services.placements.fail(attempt, self._services.time())
        failure = attempt.failure
        assert failure is not None
        self._end(None if self._held_back else f"the prefill failed: {failure.reason}")

    def _end(self, problem: str | None) -> None:
        self._stop_waiting()
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(problem)

    # time

    def _arm(self) -> None:
        self._disarm()
        attempt, timeouts = self._attempt, self._services.timeouts
        limit_s = self._handover.limit_s(attempt.ticket, 0.0) if attempt.sent else timeouts.connect_s
        self._timer = self._services.loop.call_later(limit_s, self._due)

    def _due(self) -> None:
        self._timer = LastLook(self._services.loop, self._late)

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
