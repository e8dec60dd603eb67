"""One connection of the admin port: uvicorn's protocol, with limits on time, bytes and connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Any

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from router.errors import ErrorKind, problem
from router.gateway.http.send_buffer_limit import SendBufferLimit
from router.gateway.listen.connection_limit import ConnectionLimit

MOST_UNSENT_BYTES = 33_554_432
"""Bytes of unsent responses of all clients together. Beyond it, the client that has read nothing for the longest time
is cut off.
"""
MOST_BODY_BYTES = 33_554_432
"""Bytes of all request bodies that are being received."""
MOST_PIPELINED = 16
"""Requests that a connection may send ahead. A connection with more is closed."""
LAST_WORDS_S = 2.0
"""Time for a client to read a refusal."""

log = logging.getLogger("warmroute.admin")


class _TooManyAhead(Exception):
    """Raised inside the parser, which ends the connection with 400."""


class RequestStep(Enum):
    """The part of a request or response that a connection waits for."""

    REQUEST = 0
    HEAD = 1
    BODY = 2
    ANSWER = 3


@dataclass(slots=True)
class AdminPort:
    """State shared by the connections of one admin port. `body_bytes` counts bodies being received."""

    places: ConnectionLimit
    unsent: SendBufferLimit
    max_header_bytes: int
    header_s: float
    body_s: float
    unread_s: float
    body_bytes: int = 0


class AdminConnection(HttpToolsProtocol):
    """A connection with time limits.

    A request head has `header_s`, counted from the accept for the first one. A body has `body_s`, and a client that
    does not read its response has `unread_s`. Between two requests uvicorn's keep-alive timeout applies.
    """

    def __init__(
        self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any], port: AdminPort
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._port = port
        self._timer: asyncio.TimerHandle | None = None
        self._step = RequestStep.REQUEST
        self._writable = True
        self._head_bytes = 0
        self._body_bytes = 0

    # asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._port.places.opened(self)
        self._within(self._port.header_s, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._within(None)
        self._give_back_body()
        if not self._writable:
            self._port.unsent.resumed(self)
        self._port.places.left(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._step is RequestStep.REQUEST:
            self._enter(RequestStep.HEAD)
        super().data_received(data)
        if self._step is RequestStep.HEAD:
            self._head_bytes += len(data)
            if self._head_bytes > self._port.max_header_bytes:
                self._refuse(ErrorKind.HEADERS_TOO_LARGE, "request head too large")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writable = False
        self._within(self._port.unread_s, self.evict)
        self._port.unsent.paused(self, self.unsent_bytes)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._writable = True
        self._port.unsent.resumed(self)
        self._enter(self._step)

    # parser callbacks

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._step is not RequestStep.HEAD:
            self._enter(RequestStep.HEAD)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MOST_PIPELINED:
            raise _TooManyAhead
        super().on_headers_complete()
        self._enter(RequestStep.BODY)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._body_bytes += len(body)
        self._port.body_bytes += len(body)
        if self._port.body_bytes > MOST_BODY_BYTES:
            self._refuse(ErrorKind.TOO_MANY_REQUESTS, "the bodies of other requests fill the memory for bodies")

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._give_back_body()
        self._enter(RequestStep.REQUEST if self.cycle.response_complete else RequestStep.ANSWER)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._within(self._port.unread_s, self.evict)
        elif self._step is RequestStep.ANSWER and not self.pipeline:
            self._enter(RequestStep.REQUEST)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._within(LAST_WORDS_S, self.evict)

    # limits

    @property
    def unsent_bytes(self) -> int:
        """Response bytes that the client has not read."""
        return self.transport.get_write_buffer_size()

    def allow_unsent(self, size_bytes: int) -> None:
        """Do nothing: a response is written as a whole, so no part of it can be kept back."""

    def cut_off(self) -> None:
        """Close the connection, because unsent responses take too much memory and this client has not read for the
        longest time.
        """
        log.info("slow reader cut off", extra={"port": "admin"})
        self.loop.call_soon(self.evict)

    def evict(self) -> None:
        self.transport.abort()

    def _enter(self, step: RequestStep) -> None:
        self._step = step
        port = self._port
        if step is RequestStep.REQUEST:
            port.places.idle(self, self.loop.time())
        else:
            port.places.busy(self)
        if step is RequestStep.HEAD:
            self._head_bytes = 0
        if not self._writable or self.transport.is_closing():
            return  # the running timer is the client's time limit for reading
        if step is RequestStep.HEAD or step is RequestStep.BODY:
            self._within(port.header_s if step is RequestStep.HEAD else port.body_s, self._too_slow)
        else:
            self._within(None)

    def _within(self, limit_s: float | None, otherwise: Callable[[], None] | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if limit_s is not None and otherwise is not None:
            self._timer = self.loop.call_later(limit_s, otherwise)

    def _too_slow(self) -> None:
        self._refuse(ErrorKind.REQUEST_TIMEOUT, "the request did not arrive in time")

    def _refuse(self, kind: ErrorKind, detail: str) -> None:
        """Answer unless a response has begun, then close."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        answering = cycle is not None and not cycle.response_complete
        own = self._step is RequestStep.BODY and not self.pipeline and not (answering and cycle.response_started)
        if self._step is not RequestStep.REQUEST and (own or not answering):
            self.transport.write(_refusal(kind, detail))
        if answering:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()
        self._within(LAST_WORDS_S, self.evict)

    def _give_back_body(self) -> None:
        self._port.body_bytes -= self._body_bytes
        self._body_bytes = 0


def _refusal(kind: ErrorKind, detail: str) -> bytes:
    spec = kind.spec
    body = msgspec.json.encode(problem(spec.status, spec.code, spec.title, detail))
    lines = (
        f"HTTP/1.1 {spec.status} {HTTPStatus(spec.status).phrase}",
        "content-type: application/problem+json",
        f"content-length: {len(body)}",
        "connection: close",
        "",
        "",
    )
    return "\r\n".join(lines).encode("ascii") + body
