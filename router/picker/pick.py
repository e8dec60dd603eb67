"""One request at the picker: identify it, find a worker in time, and keep its load until its answer has ended.

The rules are those of every front (`router.requests`). What is the picker's own: a time limit over all of it, because
nobody else bounds a gateway that waits in full duplex, and a subset of endpoints, outside of which nothing is waited
for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum
from time import perf_counter

import msgspec

from policies.view import WorkerId
from router.errors import ErrorKind, RequestError
from router.picker.intake import identify, identify_by_headers
from router.picker.pairs import MovedCache
from router.picker.parts import PickerParts
from router.picker.pools.worker_pool import WorkerPool
from router.picker.protocol.names import PREFER
from router.picker.request_headers import Subset, objective_of, pool_of
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.request import FailurePoint, Usage
from router.placement.tickets import Held, Queued, Ticket
from router.requests.incoming import IncomingRequest
from router.requests.layer import RequestEnd
from router.requests.placing import Placement, SharedPlacement, Waited
from router.security.callers import TenantUsage

_IF_AVAILABLE = b"if-available"


class Sees(IntEnum):
    """How much of the answer passes the picker."""

    NOTHING = 0
    END = 1
    """Its headers and its end."""
    TOKENS = 2


class Pick:
    """Satisfies `router.requests.queues.request.WaitingRequest`. `find` asks for a worker, and `end` releases it."""

    __slots__ = (
        "_ended", "_found", "_parts", "_sees", "_since_s", "_until_s", "_waited", "answered", "incoming", "moved",
        "ticket",
    )  # fmt: skip

    def __init__(self, parts: PickerParts, incoming: IncomingRequest, until_s: float, sees: Sees) -> None:
        self._parts = parts
        self._sees = sees
        self._until_s = until_s
        self._found: asyncio.Future[None] | None = None
        self._since_s = 0.0
        self._waited = Waited.NOWHERE
        self._ended = False
        self.incoming = incoming
        self.ticket: Ticket | None = None
        self.moved: MovedCache | None = None
        """The plan that moves KV cache for the request, if there is one."""
        self.answered = False
        """Whether the worker has begun to answer, as far as the picker sees it."""

    # for the queues and the quarantine

    @property
    def account(self) -> TenantUsage | None:
        return self.incoming.caller.account

    @property
    def served_as(self) -> tuple[str, str]:
        request = self.incoming.request
        return ("", "") if request is None else (request.route, self._parts.model_label(request.model))

    @property
    def body_key(self) -> int:
        return self._parts.gate.body_key(self.incoming)

    @property
    def endpoints(self) -> tuple[FleetEndpoint, ...]:
        return () if self.ticket is None else (self.ticket.candidate.endpoint,)

    @property
    def unanswered(self) -> tuple[FleetEndpoint, ...]:
        """The endpoint that has not answered yet. Where no answer is seen, nobody can say."""
        return () if self.answered or self._sees is Sees.NOTHING else self.endpoints

    @property
    def awaited(self) -> tuple[FleetEndpoint, ...]:
        return ()

    def sent_to(self, worker: WorkerId | None) -> bool:
        return self.ticket is not None and self.ticket.candidate.id == worker

    def endpoint_lost(self, endpoint: FleetEndpoint) -> None:
        """Do nothing: the request is with the gateway, which retries by its own rules."""

    def worker_gone(self, endpoint: FleetEndpoint) -> None:
        self.cancel()

    def offer(self) -> None:
        try:
            if self._waited is Waited.HOLD:
                self._leave()
            self._ask()
        except Exception as error:  # the queue goes on with its other requests
            self._settle(error)

    # finding a worker

    async def find(self, *, by_headers: bool) -> None:
        """Set `ticket`. `by_headers`: the request has a body that the picker does not get.

        Raises:
            RequestError: the request is refused, or no worker came in time.
        """
        parts, incoming = self._parts, self.incoming
        parts.running.add(self)
        if len(parts.running) > parts.max_requests:
            raise RequestError(ErrorKind.CONCURRENCY_LIMIT, "too many requests in progress; try again later")
        incoming.layers = parts.features.layers(incoming)
        self._tell_layers(lambda layer: layer.started(parts.time()))
        if by_headers:
            identify_by_headers(parts, incoming)
        else:
            await identify(parts, incoming, self._until_s)
        self._tell_layers(lambda layer: layer.identified(parts.time()))
        if self._sees is not Sees.TOKENS:
            assert incoming.request is not None
            # nobody sees the first token, so the prefill ends when its estimated time has passed
            incoming.request = msgspec.structs.replace(incoming.request, stream=False)
        self._check_saturation()
        await self._place()
        self._check_preference()

    def _check_saturation(self) -> None:
        """Refuse a request of a negative priority if no worker has room for it.

        Raises:
            RequestError: OVERLOADED.
        """
        parts, incoming = self._parts, self.incoming
        objective, request = objective_of(incoming.head, incoming.caller), incoming.request
        if objective is None or request is None:
            return
        if parts.objects.priority(objective, pool_of(incoming.within)) >= 0:
            return
        if parts.saturation.of_all(request.model, parts.gate.within(incoming)):
            message = f"every worker is saturated, and requests of the objective {objective[:100]} do not wait"
            raise RequestError(ErrorKind.OVERLOADED, message)

    def _check_preference(self) -> None:
        """Refuse a request that wants a worker with its prompt in cache, if the policy's worker has to compute it.

        llm-d's coordinator sends ``Prefer: if-available`` with its first call, and has the prompt computed after a 412.
        The last block need not be there: a worker computes the last token in any case.

        Raises:
            RequestError: PREFIX_NOT_CACHED.
        """
        ticket, preferred = self.ticket, self.incoming.head.fields.get(PREFER.encode(), b"")
        if ticket is None or _IF_AVAILABLE not in preferred.lower():
            return
        prompt_tokens, block_tokens = ticket.request.prompt_tokens, ticket.candidate.block_tokens
        needed_tokens = max(0, prompt_tokens - 1) // block_tokens * block_tokens
        if (ticket.predicted_cached_tokens or 0) < needed_tokens:
            message = f"{ticket.predicted_cached_tokens or 0} of {prompt_tokens} prompt tokens are in a worker's cache"
            raise RequestError(ErrorKind.PREFIX_NOT_CACHED, message)

    def _tell_layers(self, event: Callable[..., RequestError | None]) -> None:
        for layer in self.incoming.layers:
            if (refusal := event(layer)) is not None:
                raise refusal

    async def _place(self) -> None:
        loop, self._since_s = self._parts.loop, self._parts.time()
        self._found = loop.create_future()
        self._ask()
        if not self._found.done():
            limit_s = self._until_s
            if self._waited is Waited.QUEUE:
                limit_s = min(limit_s, self._since_s + self._parts.gate.queue_s(self.incoming))
            timer = loop.call_at(limit_s, self._expired)
            try:
                await self._found
            finally:
                timer.cancel()
        self._found.result()

    def _ask(self) -> None:
        parts, incoming = self._parts, self.incoming
        request, started_s, now_s = incoming.request, perf_counter(), parts.time()
        assert request is not None
        placed = parts.gate.place(incoming, request, self._waited, self._since_s, now_s)
        self._decided(placed, perf_counter() - started_s)

    def _decided(self, placed: Placement, took_s: float) -> None:
        parts, incoming, now_s = self._parts, self.incoming, self._parts.time()
        for layer in incoming.layers:
            layer.decided(placed.noted if isinstance(placed, SharedPlacement) else placed, now_s, took_s)
        if isinstance(placed, Queued) and not placed.at_limit:
            placed = self._nobody(placed) or placed
        if not isinstance(placed, Held) or self._waited is Waited.QUEUE:
            self._leave()  # a request that is still held keeps its place
        if isinstance(placed, Queued):
            self._waited = Waited.QUEUE
            parts.gate.queue(incoming, self)
        elif isinstance(placed, Held):
            self._waited = Waited.HOLD
            parts.gate.hold(incoming, self, placed)
        elif isinstance(placed, RequestError):
            self._settle(placed)
        else:
            self._take(placed)

    def _nobody(self, waits: Queued) -> RequestError | None:
        """Return the error for a request whose subset or pool has nobody for it; None if it may wait."""
        within, request = self.incoming.within, self.incoming.request
        if isinstance(within, Subset):
            return RequestError(ErrorKind.NO_WORKER, f"no endpoint of the subset is ready: {waits.reason}")
        if isinstance(within, WorkerPool) and request is not None:
            return within.refusal(request.model)
        return None

    def _take(self, placed: Ticket | SharedPlacement) -> None:
        if isinstance(placed, MovedCache):
            self.moved = placed
            placed = placed.noted
        assert isinstance(placed, Ticket)
        self.ticket = self.incoming.ticket = placed
        self._settle(None)

    def _settle(self, error: BaseException | None) -> None:
        found = self._found
        if found is None or found.done():
            return
        if error is None:
            found.set_result(None)
        else:
            found.set_exception(error)

    def _expired(self) -> None:
        """Place the request by what is known now: without the policy's hold, or on a fallback's worker."""
        try:
            now_s = self._parts.time()
            unheld = self._unheld(now_s) if self._waited is Waited.HOLD else None
            if isinstance(unheld, (Ticket, RequestError)):
                self._decided(unheld, 0.0)
            else:
                self._decided(self._parts.gate.queue_expired(self.incoming, now_s), 0.0)
        except Exception as error:  # a defect ends this request alone
            self._settle(error)

    def _unheld(self, now_s: float) -> Placement:
        request = self.incoming.request
        assert request is not None
        return self._parts.gate.hold_expired(self.incoming, request, now_s)

    def _leave(self) -> None:
        self._parts.gate.leave_queues(self.incoming, self)

    # after the pick

    def first_token(self, now_s: float) -> None:
        if self.ticket is None:
            return
        self._parts.tickets.first_token(self.ticket, now_s)
        if self.moved is not None:
            self.moved.arrived(now_s)

    def served_by(self, endpoint_id: str, now_s: float) -> None:
        """Move the load to the endpoint that serves the request, if that is another one."""
        ticket = self.ticket
        if ticket is None or ticket.ended or ticket.candidate.endpoint.id == endpoint_id:
            return
        self.ticket = self._parts.dispatcher.follow(ticket, endpoint_id, now_s)
        if self.moved is not None:
            self.moved.cancel()

    def expect_prefill(self) -> None:
        """End the prefill by prediction, because nobody sees its end."""
        parts, ticket = self._parts, self.ticket
        if ticket is None or ticket.ended:
            return
        prefill, ends = ticket.prefill, parts.predicted_ends
        if self.moved is not None and prefill is not None and not prefill.ended:
            ends.keep(self.moved, prefill.candidate, ends.prefill_s(prefill))
        parts.loop.call_later(ends.prefill_s(ticket), lambda: parts.tickets.prefill_expected(ticket, parts.time()))

    def expect_end(self) -> None:
        """Release the request by prediction: its answer passes elsewhere from now on."""
        ticket, ends = self.ticket, self._parts.predicted_ends
        if ticket is None or ticket.ended:
            self.release()
            return
        self.expect_prefill()
        before_s = 0.0 if ticket.prefill is None else ends.prefill_s(ticket.prefill)
        ends.keep(self, ticket.candidate, before_s + ends.answer_s(ticket))

    # the end

    def finish(self, usage: Usage, status: int, text_bytes: int = 0) -> None:
        """Release the request after a complete answer."""
        now_s, ticket = self._parts.time(), self.ticket
        if ticket is not None:
            if self.moved is not None:
                self.moved.release()
                usage = Usage(None, usage.completion_tokens)  # it reports what came from another worker as cached
            self._parts.tickets.finished(ticket, usage, now_s, status=status)
        self._end(status, usage if status < 400 else Usage(0, 0), text_bytes, served=True)

    def fail(self, point: FailurePoint, status: int, reason: str, retry_after_s: float | None = None) -> None:
        if self.ticket is not None:
            self._parts.tickets.failed(self.ticket, point, self._parts.time(), reason, retry_after_s)
        self._end(status, Usage(0, 0), 0, served=False)

    def release(self) -> None:
        """End a request whose answer nobody has seen. Its caller is charged by the estimate. Idempotent."""
        if self.moved is not None:
            self.moved.release()
        if self.ticket is not None:
            self._parts.tickets.released(self.ticket, self._parts.time())
        self._end(200, Usage(), 0, served=True)

    def cancel(self, text_bytes: int = 0) -> None:
        """Release all that the request has: its place in a queue, its load and its limits. Idempotent."""
        if self.ticket is not None:
            self._parts.tickets.cancelled(self.ticket, self._parts.time())
        self._end(499, None, text_bytes, served=self.answered)

    def _end(self, status: int, answered: Usage | None, text_bytes: int, *, served: bool) -> None:
        if self._ended:
            return
        self._ended = True
        parts, incoming, now_s = self._parts, self.incoming, self._parts.time()
        self._leave()
        parts.running.discard(self)
        parts.gate.ended(incoming)
        if self.moved is not None:
            self.moved.cancel()
        usage = answered or Usage()
        for layer in incoming.layers:
            duration_s = now_s - incoming.arrived_s
            left = answered is None and self.ticket is not None
            layer.ended(
                RequestEnd(
                    status,
                    now_s,
                    duration_s,
                    None,
                    usage,
                    None,
                    incoming.ticket,
                    answered,
                    text_bytes,
                    served=served or left,
                    left=left,
                    tunnel=False,
                )
            )
