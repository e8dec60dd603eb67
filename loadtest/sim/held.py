"""Calls that wait in the gateway, because its policy holds them."""

from __future__ import annotations

from collections.abc import Callable

from loadtest.sim.placements import AnyPlacement, GatewayPlacement
from loadtest.sim.virtual_time import VirtualTime
from policies.view import WorkerId
from router.placement.dispatcher import Held
from router.placement.held_by_worker import HeldByWorker
from router.placement.request import Request


class HeldCall:
    """A call that waits in the gateway. `heard` gets its placement or rejection, unless its client leaves."""

    __slots__ = ("_among", "heard", "held", "request")

    def __init__(self, among: HeldCalls, request: Request, held: Held) -> None:
        self._among = among
        self.request = request
        self.held = held
        self.heard: list[Callable[[AnyPlacement], None]] = []

    def leave(self) -> bool:
        """End the wait, because the client closed its connection; return False if the call no longer waits."""
        return self._among.leave(self)


class HeldCalls:
    """Offers held calls to the dispatcher again, on virtual time, in the order of `router.gateway.queues.hold`."""

    def __init__(self, time: VirtualTime, dispatch: Callable[[Request], AnyPlacement | Held]) -> None:
        self._time = time
        self._dispatch = dispatch
        self._waiting: HeldByWorker[HeldCall] = HeldByWorker()

    def enter(self, request: Request, held: Held) -> HeldCall:
        call = HeldCall(self, request, held)
        self._wait(call)
        return call

    def leave(self, call: HeldCall) -> bool:
        """End a call's wait; return False if it did not wait."""
        return self._waiting.leave(call)

    def relieved(self, worker: WorkerId) -> None:
        """Offer the calls held for a worker that has no prefill left.

        The dispatcher calls this in the middle of its own work, so the offer follows as an event of its own.
        """
        if self._waiting.first(worker):
            self._time.after(0.0, self._offer, worker)

    def _wait(self, call: HeldCall) -> None:
        self._waiting.enter(call, call.held.worker)
        self._time.at(call.held.until_s, self._expired, call, call.held)

    def _offer(self, worker: WorkerId) -> None:
        for call in self._waiting.first(worker):
            if self._again(call) == worker:  # the worker has a prefill again, so the others wait on
                return

    def _expired(self, call: HeldCall, held: Held) -> None:
        if call.held is held:
            self._again(call)

    def _again(self, call: HeldCall) -> WorkerId | None:
        """Dispatch a held call again; return its worker if it was placed."""
        if not self.leave(call):
            return None
        answer = self._dispatch(call.request)
        if isinstance(answer, Held):
            call.held = answer
            self._wait(call)
            return None
        for heard in call.heard:
            heard(answer)
        return answer.worker_id if isinstance(answer, GatewayPlacement) else None
