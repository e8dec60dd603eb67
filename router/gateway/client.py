"""One client connection: its requests in order, its back-pressure, its deadlines and its end."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import cast

from router.errors import ErrorKind, RequestError
from router.gateway.flow.driver import SHUT_DOWN, RequestDriver
from router.gateway.flow.services import GatewayServices
from router.gateway.http.client.input import LINGER_S, ClientInput
from router.gateway.http.client.output import ClientOutput
from router.gateway.http.client.request_framer import FramerState, RequestFramer
from router.gateway.http.client.tunnel import Tunnel
from router.gateway.http.upstream.headers import CONTINUE
from router.requests.request_head import RequestHead
from router.requests.routes import Route

log = logging.getLogger("warmroute.gateway")

# The bytes of further requests that are kept while one is in progress. Beyond them the gateway stops reading.
PIPELINE_BYTES = 65_536

# After these refusals the connection can serve the next request.
_HARMLESS = frozenset(
    {
        ErrorKind.PATH_NOT_FOUND,
        ErrorKind.METHOD_NOT_ALLOWED,
        ErrorKind.INVALID_API_KEY,
        ErrorKind.LOOP_DETECTED,
        ErrorKind.UNSUPPORTED_CONTENT_ENCODING,
    }
)

_LOOP = "the request has passed this gateway before: the address of a worker leads back to it"


class ClientConnection(asyncio.Protocol):
    """The asyncio protocol of a client's connection.

    `peer` is the client's address, empty on a Unix socket. A sweep calls `expired` after `deadline_s`. `caller` is
    the sender of the last request, found by its API key. `writable` is False while the bytes that the client has not
    read exceed the write buffer's limit.
    """

    def __init__(self, services: GatewayServices) -> None:
        self._services = services
        self._framer = RequestFramer(services.limits, services.bodies, self._head_read)
        self._request: RequestDriver | None = None
        self._route: Route | None = None
        self._tunnel: Tunnel | None = None
        self._over = False
        self.peer = ""
        self.caller = services.callers.anybody
        self.deadline_s = math.inf
        self.writable = True
        self.input = ClientInput(services.bodies)
        self.output = ClientOutput(services.outbox)
        self._next_due = False
        """One more pipelined request is served in the next iteration of the loop: one read may carry thousands."""

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        services = self._services
        transport = cast(asyncio.Transport, transport)
        if services.drain.closing or self._over:
            self._over = True
            transport.abort()
            return
        self.input.connected(transport)
        self.output.connected(transport)
        services.drain.joined(self)
        self.allow_unsent(services.unsent.allowance_bytes)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        self.deadline_s = services.time() + services.drain.client_idle_s

    def data_received(self, data: bytes) -> None:
        if self._over:
            if self.input.discard(len(data)):
                self.abort()
            return
        try:
            if self._request is None:
                self._framer.feed(data)
                self._advance()
            elif self._tunnel is not None:
                self._tunnel.from_client(data)
            else:
                self._framer.feed(data)
                self._pace()
        except Exception:
            self._crashed()

    def eof_received(self) -> None:
        """Treat the client's half-close as a disconnect, as vLLM's own server does."""
        if self._request is not None:
            self.abort()
        else:
            self.output.flush()  # the transport closes after this call, so the answers of this iteration must be in it

    def connection_lost(self, exc: Exception | None) -> None:
        self.output.lost()
        if not self._over and self._framer.state is FramerState.BODY and self._request is None:
            self._services.metrics.client_aborts.add(1.0, ("request",))
        self._over = True
        self._leave_request()
        self._framer.close()
        self.input.lost()
        if not self.writable and self._services.unsent.resumed(self):
            self._services.allow_unsent()
        self._services.drain.left(self)

    def pause_writing(self) -> None:
        """Stop reading the worker's answer, and answer no further request, until the client reads again."""
        self._set_writable(False)

    def resume_writing(self) -> None:
        self._set_writable(True)

    def _set_writable(self, writable: bool) -> None:
        self.writable = writable
        if self._request is not None:
            self._request.client_writable(writable)
        elif not self._over and self._framer.state is FramerState.IDLE:
            self._await_request()
        else:
            self._pace()
        unsent = self._services.unsent
        if unsent.resumed(self) if writable else unsent.paused(self, self.unsent_bytes):
            self._services.allow_unsent()

    def cut_off(self) -> None:
        """Close this connection: the unsent answers of all clients are too large, and it has been paused longest."""
        log.info("slow reader cut off", extra={"peer": self.peer})
        self._services.loop.call_soon(self.abort)

    @property
    def unsent_bytes(self) -> int:
        """Answer bytes that the client has not read, plus the request bytes that wait because of them."""
        waiting = self._framer.pending_bytes if self._request is None else 0
        return self.output.unsent_bytes + waiting

    def allow_unsent(self, size_bytes: int) -> None:
        self.output.allow_unsent(size_bytes)

    # requests

    def _advance(self) -> None:
        """Handle one request if it is complete. Further ones wait for later iterations: other clients come first."""
        framer = self._framer
        if self._request is None and not self._over and self.writable:
            stage = framer.state
            try:
                request = framer.next()
            except RequestError as error:
                self._refuse(error)
            else:
                if request is None:
                    self._await_more(stage)
                    if not framer.stopped:
                        self.input.set_reading(True)
                        return
                else:
                    self._handle(*request)
        self._pace()

    def _pace(self) -> None:
        """Start or stop reading from the socket.

        While a request is in progress, a limited number of further bytes is read: only a read shows that the client
        has closed the connection. While pipelined requests wait for their turn, nothing is read.
        """
        pending_bytes = self._framer.pending_bytes
        if self.writable and not (pending_bytes or self.input.ahead_bytes or self.input.paused):
            return  # the usual case
        self.input.give_back_ahead()
        if self._over:
            return
        if self._request is not None:
            self.input.set_reading(pending_bytes <= PIPELINE_BYTES)
            # Many bytes that wait behind the request in progress count as body bytes. If the body limit does not allow
            # them, only a close can say so: an error could not be sent before the answer in progress.
            if pending_bytes > PIPELINE_BYTES and not self.input.take_ahead(pending_bytes):
                log.info("too many bytes sent ahead", extra={"peer": self.peer, "bytes": pending_bytes})
                self.abort()
        elif not self.writable:
            self.input.set_reading(False)
        elif pending_bytes:
            self.input.set_reading(False)
            if not self._next_due:
                self._next_due = True
                self._services.loop.call_soon(self._serve_next)
        else:
            self.input.set_reading(True)

    def _serve_next(self) -> None:
        self._next_due = False
        try:
            self._advance()
        except Exception:
            self._crashed()

    def _await_more(self, before: FramerState) -> None:
        """Set the deadline of a head or body that has just begun.

        One deadline covers the whole head or the whole body. If each read extended it, a slow sender could occupy a
        connection for ever.
        """
        stage = self._framer.state
        if stage is not before:
            self._services.drain.places.busy(self)
            timeouts = self._services.timeouts
            limit_s = timeouts.client_header_s if stage is FramerState.HEAD else timeouts.client_body_s
            self.deadline_s = self._services.time() + limit_s

    def _head_read(self, head: RequestHead) -> None:
        """Check key and path before the body is read, and answer `Expect: 100-continue`.

        Raises:
            RequestError: the request is refused.
        """
        via = head.fields.get(b"via")
        if via is not None and self._services.instance.passed(via):
            raise RequestError(ErrorKind.LOOP_DETECTED, _LOOP)
        keys = self._services.keys
        if keys is not None:
            name, callers = self._services.local.let_in(head, keys), self._services.callers
            self.caller = callers.of(name) if name is not None else callers.anybody
            self._framer.charge(self.caller.account)
        self._route = self._services.local.route(head)
        if head.expects_continue and head.has_body and not self._framer.pending_bytes:
            self.output.write(CONTINUE)

    def _handle(self, head: RequestHead, body: bytes) -> None:
        route = self._route
        if route is None:
            keep = head.keep_alive and not self._services.drain.draining
            self.output.write(self._services.local.answer(head, self.peer, close=not keep, key_name=self.caller.name))
            self.request_ended(keep)
            return
        self._services.drain.places.busy(self)
        request = self._request = RequestDriver(self._services, self, head, body, route)
        self.deadline_s = math.inf
        request.start()

    def _refuse(self, error: RequestError) -> None:
        harmless = error.kind in _HARMLESS
        keep = harmless and not self._services.drain.draining and self._framer.skip_refused()
        self.output.write(self._services.local.refusal(self._framer.head, self.peer, error, close=not keep))
        if keep:
            self._await_request()
        else:
            self._linger()

    @property
    def may_go_on(self) -> bool:
        """Whether the answer that is about to begin may keep the connection open for another request."""
        return not (self._services.drain.draining or self._over)

    def request_ended(self, keep_alive: bool) -> None:
        """Continue after the request in progress was answered, or its answer could not be completed.

        `keep_alive` is True if the answer's head promised to keep the connection open. A drain that began after that
        head keeps the promise, because the next request may already be on its way. Its answer then announces the
        close.
        """
        self._request = None
        self._framer.give_back()
        if not keep_alive or self._over or self._services.drain.closing:
            self._close()
            return
        self._await_request()

    def _await_request(self) -> None:
        """Wait for the next request. A client that does not read its answers has `timeouts.stream_idle_s`."""
        services = self._services
        now_s = services.time()
        if self.writable:
            self.deadline_s = now_s + services.drain.client_idle_s
            services.drain.places.idle(self, now_s)
        else:
            self.deadline_s = now_s + services.timeouts.stream_idle_s
            services.drain.places.busy(self)
        self._pace()

    # endings

    def expired(self, now_s: float) -> None:
        if self._request is not None:
            self._request.expired(now_s)
        elif self._over or not self.writable:
            self.abort()
        elif self._framer.state is FramerState.IDLE:
            self._close()
        else:
            self._refuse(RequestError(ErrorKind.REQUEST_TIMEOUT, "the request did not arrive in time"))

    def shorten_idle(self, by_s: float) -> None:
        if self._request is None and not self._over and self._framer.state is FramerState.IDLE:
            self.deadline_s -= by_s

    def evict(self) -> None:
        self.abort()

    def abort(self) -> None:
        """Close at once; a request in progress is cancelled."""
        self._over = True
        self.output.abort()
        self._leave_request()

    def _close(self) -> None:
        """Close after everything is written. A client that does not read has `timeouts.stream_idle_s`."""
        self._over = True
        self._services.drain.places.busy(self)
        self.deadline_s = self._services.time() + self._services.timeouts.stream_idle_s
        self.output.close()

    def _linger(self) -> None:
        """Close the sending side, and discard the client's bytes for `LINGER_S`, up to `LINGER_BYTES`."""
        self._over = True
        self._services.drain.places.busy(self)
        self._framer.close()
        self.deadline_s = self._services.time() + LINGER_S
        self.input.set_reading(True)
        self.output.end()

    def _leave_request(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            request.client_gone()

    def _crashed(self) -> None:
        """End the request in progress, or the connection, after a defect. Call from an `except` block."""
        if self._request is not None:
            self._request.crashed()
        else:
            log.exception("client connection failed")
            self.abort()

    def shut_down(self) -> None:
        """End the request in progress with an error, then the connection: the drain deadline has passed."""
        if self._request is not None:
            self._request.shut_down()
        elif not self._over:
            if self._framer.state is FramerState.IDLE:
                self._close()
            else:
                self._refuse(RequestError(ErrorKind.SHUTTING_DOWN, SHUT_DOWN))

    # for a request

    def body_done(self, kept_bytes: int) -> None:
        self._framer.give_back(kept_bytes)

    def open_tunnel(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        pending = self._framer.take_pending()
        self.input.give_back_ahead()
        # before the worker gets bytes: a worker that does not read stops the reading again
        self.input.set_reading(True)
        if pending:
            tunnel.from_client(pending)
