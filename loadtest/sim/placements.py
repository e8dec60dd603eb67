"""The place that the gateway found for a call, on one worker or on two, and a call that it did not accept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from backends.engine.engine import EngineRequestState
from loadtest.sim.network import Network
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker
from policies.view import WorkerId
from router.placement.dispatcher import Dispatcher, Ticket
from router.placement.handover.links import Transfer
from router.placement.handover.planner import HandoverTickets
from router.placement.request import Request, Usage


class Follows(Protocol):
    """The gateway that follows the placed calls."""

    @property
    def dispatcher(self) -> Dispatcher:
        """Receives the lifecycle events."""

    @property
    def time(self) -> VirtualTime: ...

    def tells_usage(self) -> bool:
        """Return whether the answer that ends now reports its usage."""

    def place_alone(self, request: Request) -> GatewayPlacement | Rejected:
        """Choose one worker for a call that two could not share."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A call that the gateway did not accept."""

    reason: str


class GatewayPlacement:
    """The ticket of a placed call, which passes the call's lifecycle events to the dispatcher."""

    __slots__ = ("_gateway", "_progress", "_ticket", "_time", "worker")

    def __init__(self, gateway: Follows, ticket: Ticket, worker: EngineWorker) -> None:
        self._gateway = gateway
        self._progress = gateway.dispatcher.progress
        self._time = gateway.time
        self._ticket = ticket
        self.worker = worker

    @property
    def worker_id(self) -> WorkerId:
        return self._ticket.candidate.id

    @property
    def predicted_tokens(self) -> int | None:
        """Predicted cached tokens, which the dispatcher compares with those reported."""
        return self._ticket.predicted_cached_tokens

    def progressed(self, tokens: int) -> None:
        """Report that the stream has `tokens` tokens."""
        now_s = self._time.now_s
        if tokens == 1:
            self._gateway.dispatcher.first_token(self._ticket, now_s)
        self._progress(self._ticket, tokens)

    def finished(self, state: EngineRequestState) -> None:
        """Report the end of the stream, perhaps with a usage block."""
        usage = Usage()
        if self._gateway.tells_usage():
            usage = Usage(state.prompt_tokens, state.output_tokens, state.cached_tokens)
        self._gateway.dispatcher.finished(self._ticket, usage, self._gateway.time.now_s)

    def refused(self) -> None:
        """Report that the worker answered 400, because the request does not fit there."""
        self._gateway.dispatcher.finished(self._ticket, Usage(), self._gateway.time.now_s, status=400)

    def left(self) -> None:
        """Report that the client closed its connection."""
        self._gateway.dispatcher.cancelled(self._ticket, self._gateway.time.now_s)


class SharedPlacement:
    """The two tickets of a call: `worker` writes its answer after `prefill_worker` has computed its prompt.

    `network` is the way from one to the other. An answer that has not begun `limit_s` after the prefill comes too late.
    """

    __slots__ = (
        "_decode", "_gateway", "_prefill", "_transfer", "limit_s", "network", "prefill_worker", "worker",
    )  # fmt: skip

    def __init__(
        self,
        gateway: Follows,
        tickets: HandoverTickets,
        workers: tuple[EngineWorker, EngineWorker],
        network: Network,
        limit_s: float,
    ) -> None:
        self._gateway = gateway
        self._prefill = tickets.prefill
        self._decode = tickets.decode
        self._transfer: Transfer | None = None
        self.prefill_worker, self.worker = workers
        self.network = network
        self.limit_s = limit_s

    @property
    def predicted_tokens(self) -> int | None:
        """Predicted cached tokens on the prefill worker."""
        return self._prefill.predicted_cached_tokens

    def prefilled(self, state: EngineRequestState) -> None:
        """Report the end of the prefill, whose whole answer is its first token."""
        dispatcher, now_s = self._gateway.dispatcher, self._gateway.time.now_s
        usage = Usage(state.prompt_tokens, None, state.cached_tokens)
        dispatcher.first_token(self._prefill, now_s)
        dispatcher.finished(self._prefill, usage, now_s)
        self._transfer = dispatcher.transfer(self._prefill, self._decode, now_s)

    def progressed(self, tokens: int) -> None:
        dispatcher, now_s = self._gateway.dispatcher, self._gateway.time.now_s
        if tokens == 1:
            dispatcher.arrived(self._decode)
            dispatcher.first_token(self._decode, now_s)
            if self._transfer is not None:
                dispatcher.transferred(self._transfer, now_s)
        dispatcher.progress(self._decode, tokens)

    def finished(self, state: EngineRequestState) -> None:
        """Report the end of the stream. What the decode worker reports as cached was cached on the other one."""
        usage = Usage(None, state.output_tokens) if self._gateway.tells_usage() else Usage()
        self._gateway.dispatcher.finished(self._decode, usage, self._gateway.time.now_s)

    def refused(self) -> None:
        """Do nothing: `place_alone` follows, and that worker says the same."""

    def left(self) -> None:
        for ticket in (self._prefill, self._decode):
            self._gateway.dispatcher.cancelled(ticket, self._gateway.time.now_s)

    def place_alone(self, reason: str) -> GatewayPlacement | Rejected:
        dispatcher, now_s = self._gateway.dispatcher, self._gateway.time.now_s
        dispatcher.not_handed_over(self._prefill, now_s, reason)
        if not dispatcher.run_plain(self._decode, reason, now_s):
            return Rejected(reason)
        return self._gateway.place_alone(self._decode.request)


AnyPlacement = GatewayPlacement | SharedPlacement | Rejected
"""The answer to a call that does not wait."""
