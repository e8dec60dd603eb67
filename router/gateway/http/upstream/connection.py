"""One connection to a worker: frames its responses and passes raw bytes on as they arrive."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

import httptools

from backends.worker import Endpoint
from router.gateway.http.upstream.answer_end import AnswerFault
from router.gateway.http.upstream.response_head import (
    RepeatedResponse,
    ResponseHead,
    final_head,
    parse_response_head,
)
from router.gateway.http.upstream.single_chunks import SHORT_BYTES, SIZE_LINES, TAIL_BYTES
from router.gateway.http.write_coalescer import WriteCoalescer

_COPIED_BYTES = 32_768
TOKEN_BYTES = 64
"""A chunk with a token is longer, framing included."""
_LAST_CHUNK: Final = b"0\r\n\r\n"
# Module constants, because looking up a member of an enum is slow.
_NO_FAULT: Final = AnswerFault.NONE
_ABORTED: Final = AnswerFault.ABORTED


class OwningPool(Protocol):
    """The pool as its connections see it. `outbox` takes short requests."""

    outbox: WriteCoalescer
    loop: asyncio.AbstractEventLoop

    def repeated(self, endpoint: Endpoint) -> RepeatedResponse: ...
    def closed(self, connection: UpstreamConnection) -> None: ...
    def put(self, connection: UpstreamConnection) -> None: ...


class ResponseReader(Protocol):
    """Receives the response of the request on the connection. It may release the connection in `response_began`."""

    def response_began(self, response: ResponseHead) -> None: ...

    def response_read(self, data: bytes) -> None:
        """Take body bytes with their framing. Their content is in the connection's `pieces` already."""

    def judge(self, data: bytes) -> AnswerFault: ...

    def answer_broken(self, fault: AnswerFault) -> None:
        """The answer has a fault. The end of its HTTP has not been passed on, if that was possible."""

    def response_ended(self) -> None:
        """The body is complete. Called after the last `response_read`."""

    def worker_lost(self, reason: str, broke_http: bool) -> None: ...

    def crashed(self) -> None:
        """One of the calls above raised. Called while the exception is handled."""


class UpstreamConnection(asyncio.Protocol):
    """The protocol of one pooled connection. It is also llhttp's callback object, so that a chunk allocates nothing.

    `pieces` collects body content without framing; the reader shortens it. `in_chunk` and `complete` are llhttp's
    state after the bytes read so far.

    A reader may set `splice`, which then receives the reads of a chunked body in place of
    `ResponseReader.response_read`. While it is set, a read that is exactly one chunk (usually one token) bypasses
    llhttp, because it leaves the parser's state unchanged, and is not judged. Chunks that may end a stream, such as
    ``data: [DONE]``, are shorter than `TOKEN_BYTES` and do not bypass it.
    """

    __slots__ = (
        "_between", "_final", "_heads", "_last", "_max_head_bytes", "_parser", "_pools", "_raw_head",
        "_repeated", "_to_head_request", "_transport", "_unsent", "complete", "connected_s", "endpoint", "idle_since_s",
        "in_chunk", "on_body", "overrun", "pieces", "raw_bytes", "reader", "response", "reused", "splice", "tunnel",
        "worker_writable",
    )  # fmt: skip

    def __init__(self, pools: OwningPool, endpoint: Endpoint, max_head_bytes: int) -> None:
        self._pools = pools
        self._max_head_bytes = max_head_bytes
        self._repeated = pools.repeated(endpoint)
        self._parser: Any = None
        self.endpoint = endpoint
        self.reader: ResponseReader | None = None
        self.response: ResponseHead | None = None
        self.reused = False
        self.idle_since_s = 0.0
        self.connected_s = 0.0
        self.tunnel: Callable[[bytes], None] | None = None
        self.worker_writable: Callable[[bool], None] | None = None
        """Called with False when the worker stops reading. Only a tunnel can write faster than its worker reads."""
        self.splice: Callable[[bytes], None] | None = None
        self.pieces: list[bytes] = []
        self._between = False
        self.complete = self.overrun = self.in_chunk = self._final = False
        self.raw_bytes = self._heads = 0
        self._raw_head = self._last = self._unsent = b""
        self._transport: asyncio.Transport | None = None

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Feed llhttp, pass the bytes on, and report the end of the response."""
        reader = self.reader
        if reader is None:
            self.abort()  # unsolicited: a late 408, or bytes after a response
            return
        try:
            splice = self.splice
            if splice is not None and self._between and TOKEN_BYTES < len(data) < SHORT_BYTES:
                line = SIZE_LINES[len(data)]
                if data.startswith(line) and data.endswith(b"\r\n"):
                    self._last = data
                    self.pieces.append(data[len(line) : -2])
                    splice(data)
                    return
            if self.tunnel is not None:
                self.tunnel(data)
            else:
                self._read(data, reader)
        except Exception:
            reader.crashed()

    def _read(self, data: bytes, reader: ResponseReader) -> None:
        if self._parser is None:
            # An answer that is no stream usually needs no parser. That saves 4 % of the whole request's CPU time.
            whole = None if self._to_head_request or self.response is not None else self._repeated.whole(data)
            if whole is not None:
                self.response, body = whole
                self.complete = True
                self.pieces.append(body)
                self._pass_head(body, reader)
                return
            self._parser = httptools.HttpResponseParser(self)
        was_in_chunk = self.in_chunk
        fault = self._feed(data)
        if fault is None:
            if self.response is not None:
                self._pass_body(data, reader)
                return
            fault = self._read_head(data, reader)
        if fault is not None:
            self.in_chunk = was_in_chunk  # these bytes are not passed on
            reader.worker_lost(fault, True)

    def eof_received(self) -> None:
        """The worker closed its side. That ends a body without a length."""
        reader = self.reader
        if reader is not None and self.tunnel is None and self.response is not None and self.response.until_close:
            self.complete = True
            try:
                fault = reader.judge(b"")
                if fault is _NO_FAULT:
                    reader.response_ended()
                else:
                    reader.answer_broken(fault)
            except Exception:
                reader.crashed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pools.closed(self)
        reader, self.reader = self.reader, None
        if reader is not None:
            try:
                reader.worker_lost(str(exc) if exc else "connection closed by the worker", False)
            except Exception:
                reader.crashed()

    def pause_writing(self) -> None:
        if self.worker_writable is not None:
            self.worker_writable(False)

    def resume_writing(self) -> None:
        if self.worker_writable is not None:
            self.worker_writable(True)

    # llhttp's callbacks (`on_body` is `pieces.append`)

    def on_message_begin(self) -> None:
        """Mark an overrun if a message starts after a complete one: a request has only one response."""
        if self.complete:
            self.overrun = True

    def on_headers_complete(self) -> None:
        """A head ended. Interim heads (1xx) are counted and skipped."""
        self._heads += 1
        status = self._parser.get_status_code()
        self._final = not 100 <= status < 200 or status == 101

    def on_message_complete(self) -> None:
        self.complete = self._final

    def on_chunk_header(self) -> None:
        self.in_chunk = True

    def on_chunk_complete(self) -> None:
        self.in_chunk = False

    # for the request that uses the connection

    def send(self, reader: ResponseReader, head: bytes, body: bytes, to_head_request: bool) -> None:
        assert self._transport is not None
        self.reader = reader
        self.response = None
        self.pieces = []
        self.on_body = self.pieces.append
        self.complete = self.overrun = self.in_chunk = self._final = self._between = False
        self.raw_bytes = self._heads = 0
        self._raw_head = b""
        self._last = b"\r\n"
        self._to_head_request = to_head_request
        self._parser = None
        # one write is one system call; a copy of a short body costs less than a second write
        if len(body) <= _COPIED_BYTES:
            self._unsent = head + body
            outbox = self._pools.outbox
            outbox.add(self)
            if outbox.quiet:
                self.flush()
        else:
            self._transport.writelines((head, body))

    def flush(self) -> None:
        unsent, self._unsent = self._unsent, b""
        if unsent and self._transport is not None and not self._transport.is_closing():
            self._transport.write(unsent)

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def silent(self) -> bool:
        return self.response is None and not self._raw_head

    @property
    def has_unread(self) -> bool:
        """Whether bytes of the worker lie in the socket. A connection that cannot say counts as if they did."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return True
        look = select.poll()
        look.register(sock.fileno(), select.POLLIN)
        return bool(look.poll(0))

    @property
    def at_boundary(self) -> bool:
        """Whether the bytes read end where a chunk may follow."""
        # llhttp does not report half a size line, so the last bytes are checked
        return not self.in_chunk and self._last.endswith(b"\r\n")

    @property
    def ends_event(self) -> bool:
        return self._last.endswith((b"\n\n\r\n", b"\r\n\r\n\r\n"))

    @property
    def exact_end(self) -> bool:
        response = self.response
        if response is not None and response.bodiless:
            return True
        if response is not None and response.length is not None:
            return self.raw_bytes == response.length
        if response is None or self.overrun:
            return False
        # after trailers or extra line breaks the end cannot be determined here
        return self._last.endswith(b"\r\n0\r\n\r\n")

    def release(self, reusable: bool) -> None:
        """Return to the pool if the response ended cleanly, else close at once."""
        self.reader = self.tunnel = self.splice = self.worker_writable = None
        self._between = False
        response = self.response
        if (
            reusable
            and response is not None
            and self.complete
            and not self.overrun
            and response.keep_alive
            and not response.until_close
            and not response.bodiless  # a forbidden body may still follow
            and self._transport is not None
            and not self._transport.is_closing()
            and not self._transport.get_write_buffer_size()
            and not self._unsent
        ):
            self.pieces = []
            self._pools.put(self)
        else:
            self.abort()

    def give_up_soon(self) -> None:
        """Report in the next iteration that the rest of the answer is of no use: this is called in the middle of it."""
        self._pools.loop.call_soon(self._give_up, self.reader)

    def _give_up(self, reader: ResponseReader | None) -> None:
        if reader is not None and self.reader is reader:
            try:
                reader.answer_broken(AnswerFault.USELESS)
            except Exception:
                reader.crashed()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def set_reading(self, reading: bool) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if reading:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def abort(self) -> None:
        """Close at once, which aborts the request in vLLM."""
        self.reader = self.tunnel = self.splice = self.worker_writable = None
        self._between = False
        self._unsent = b""
        if self._transport is not None:
            self._transport.abort()

    def _feed(self, data: bytes) -> str | None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return None
        except httptools.HttpParserError as error:
            if not self.complete:
                return str(error)
            self.overrun = True
        return "bytes after the end of the response" if self.overrun else None

    def _read_head(self, data: bytes, reader: ResponseReader) -> str | None:
        """Collect the head. Once it is complete, report it and pass on the bytes after it."""
        raw = self._raw_head = self._raw_head + data
        if not self._final:
            return "response head too large" if len(raw) > self._max_head_bytes else None
        try:
            start, end = final_head(raw, self._heads)
            if end > self._max_head_bytes:
                return "response head too large"
            head = parse_response_head(raw[start:end], self._parser.get_status_code(), self._to_head_request)
            self.response = self._repeated.keep(raw[start:end], head)
        except ValueError as error:
            return str(error)
        self._raw_head = b""
        self._pass_head(raw[end:], reader)
        return None

    def _pass_head(self, rest: bytes, reader: ResponseReader) -> None:
        assert self.response is not None
        bodiless = self.response.bodiless
        if bodiless and self.response.status != 101:
            self.complete, self.overrun, rest = True, bool(rest) or self.overrun, b""
        response = self.response
        reader.response_began(response)
        if self.reader is not reader or self.response is not response:
            return  # released, and perhaps reused already
        if self.tunnel is not None:
            if rest:
                self.tunnel(rest)
            return
        if rest:
            self._pass_body(rest, reader)
        elif self.complete:
            reader.response_ended()

    def _pass_body(self, data: bytes, reader: ResponseReader) -> None:
        self.raw_bytes += len(data)
        length = self.response.length if self.complete and self.response is not None else None
        if (
            length is not None and self.raw_bytes > length
        ):  # line breaks after the end of the body, which llhttp ignores
            data, self.raw_bytes, self.overrun = data[: length - self.raw_bytes], length, True
        fault = reader.judge(data)
        if fault is not _NO_FAULT:
            data = self._without_end(data, fault)
        if data:
            self._pass_on(data, reader)
        if self.reader is not reader:
            return
        if fault is not _NO_FAULT:
            reader.answer_broken(fault)
        elif self.complete:
            reader.response_ended()

    def _pass_on(self, data: bytes, reader: ResponseReader) -> None:
        self._last = data[-TAIL_BYTES:] if len(data) >= TAIL_BYTES else (self._last + data)[-TAIL_BYTES:]
        if self.splice is not None:
            self.splice(data)
        else:
            reader.response_read(data)
        self._between = self.splice is not None and self.at_boundary

    def _without_end(self, data: bytes, fault: AnswerFault) -> bytes:
        """Return what may be passed on of a read of an answer with a fault, so that an error event can follow.

        Nothing of it, if the worker has aborted the request. Otherwise, all but the last chunk. If that has been passed
        on in part, or has trailers, no error event can follow.
        """
        if fault is _ABORTED and (self.splice is None or self._between):
            self.pieces.clear()
            self.in_chunk = False  # after the bytes passed on so far
            return b""
        if not self.complete:
            return data
        cut = len(data) - len(_LAST_CHUNK)
        if cut >= 0 and (self._last + data).endswith(b"\r\n" + _LAST_CHUNK):
            return data[:cut]
        self.in_chunk = True
        return b""
