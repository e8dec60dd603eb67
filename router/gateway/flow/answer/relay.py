"""Write one response to the client: comments first if needed, then the worker's bytes, spliced or re-framed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from router.errors import ErrorKind
from router.gateway.flow.deadlines import Trickle
from router.gateway.http.client.output import ClientOutput
from router.gateway.http.upstream.answer_end import RECENT_BYTES
from router.gateway.http.upstream.connection import UpstreamConnection
from router.gateway.http.upstream.headers import (
    LAST_CHUNK,
    chunk,
    response_to_client,
)
from router.gateway.http.upstream.response_head import ResponseHead
from router.requests.answers.error_format import body_event, error_event
from router.requests.answers.usage import TAIL_BYTES, trim
from router.requests.outgoing import AnswerFilter
from router.requests.request_head import RequestHead

COMMENT = b": warmroute is waiting for a worker\n\n"
QUIET = b": the worker is working\n\n"
_CONTENT = re.compile(
    rb'"(?:content|reasoning|reasoning_content|refusal|arguments)"\s*:\s*"[^"]|"(?:tool_calls|content)"\s*:\s*\[\s*\{'
)
"""Members of an event with a token, of chats and of other APIs."""
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
BATCH_READS = 32
_LARGE_READ_BYTES = 16_384


class ResponseProgress(Enum):
    """The progress of the response to the client, and whose framing it has."""

    NOTHING = 0
    COMMENTS = 1
    SPLICED = 2
    REFRAMED = 3
    ENDED = 4


_CHOICE_BYTES = 64
"""The least bytes of a chat's or a completion's event from its choices on, without its text. The events of other APIs
are longer."""
_LONGEST_HEAD = 512


def _events(data: bytes) -> int:
    """Return the events with data in one read. Text cannot contain a line's end, so it cannot pass for an event."""
    events = data.count(b"\ndata: ") - data.count(b"\ndata: [DONE]")
    return events + 1 if data.startswith(b"data: ") and not data.startswith(b"data: [DONE]") else events


def _frame_bytes(pieces: Iterable[bytes]) -> int:
    """Return the least bytes of an event of this stream that are no text: all events begin with the same members."""
    data = b"".join(pieces)
    start, choices = data.find(b"data: "), data.find(b'"choices"')
    return _CHOICE_BYTES + (choices - start if 0 <= start < choices <= start + _LONGEST_HEAD else 0)


def _first_events(pieces: Iterable[bytes]) -> int:
    """Return the number of events that can hold a token, in the first bytes of a stream.

    Events that only give the role have no token. Some engines give it beside the first text.
    """
    data = b"".join(pieces)
    events, at = _events(data), data.find(b'"role":')
    while at >= 0:
        begin, end = max(0, data.rfind(b"data: ", 0, at)), data.find(b"\ndata: ", at)
        events -= _CONTENT.search(data, begin, end if end >= 0 else len(data)) is None
        at = data.find(b'"role":', end) if end >= 0 else -1
    return events


class Relay:
    """Writes one response to the client.

    Every 32 reads, `batch` is called with the gaps between them in seconds and the events so far.
    The `head_lines` of its methods are the gateway's own header lines, without Connection.
    """

    __slots__ = (
        "_batch",
        "_chunks",
        "_frame_bytes",
        "_gaps",
        "_output",
        "_own_cors",
        "_path",
        "_reads",
        "_tail",
        "_time",
        "_trickle",
        "_write",
        "answer_filter",
        "connection",
        "events",
        "last_read_s",
        "out",
        "own_bytes",
        "read",
        "response_bytes",
        "status",
        "to_old_client",
    )  # fmt: skip

    def __init__(
        self,
        output: ClientOutput,
        time: Callable[[], float],
        head: RequestHead,
        own_cors: bool,
        batch: Callable[[Sequence[float], int], None],
    ) -> None:
        self._output = output
        self._write: Callable[[bytes], None] = output.write
        self._time = time
        self._own_cors = own_cors
        self._path = head.path
        self._batch = batch
        self.to_old_client = head.minor == 0
        self._chunks = not self.to_old_client
        self.out = ResponseProgress.NOTHING
        self.status = 0
        self.response_bytes = 0
        self.own_bytes = 0
        """Those of `response_bytes` that are heads, comments and errors of the gateway, or of a worker before."""
        self._frame_bytes = 0
        self.events = 0
        self.last_read_s = 0.0
        self._gaps: list[float] = []
        self._reads: list[bytes] = []
        self.connection: UpstreamConnection | None = None
        self.read: Callable[[bytes], None] = _ignore
        """Takes the reads that follow `open`."""
        self._tail = b""
        self._trickle: Trickle | None = None
        self.answer_filter: AnswerFilter | None = None
        """Removes the usage frame from a stream whose client did not ask for usage, or rewrites the usage."""

    def attach(self, connection: UpstreamConnection, answer_filter: AnswerFilter | None) -> None:
        self.connection = connection
        self.answer_filter = answer_filter

    @property
    def text_bytes(self) -> int:
        """The bytes of the answer so far without heads, comments and the frames of events: at least its text."""
        return max(0, self.response_bytes - self.own_bytes - self.events * self._frame_bytes)

    # before the first real event

    def suspend(self) -> None:
        """Let the answer of another worker follow, as it would after comments. The client has whole events only."""
        self.flush()
        self.own_bytes, self.events = self.response_bytes, 0  # what was sent is part of the next worker's prompt
        self.out = ResponseProgress.COMMENTS
        self.connection = self.answer_filter = self._trickle = None
        self.read = _ignore

    def preamble(self) -> bytes:
        """Return what the client has of a stream without a token, if another stream can follow it; else empty."""
        self.flush()
        connection = self.connection
        response = None if connection is None else connection.response
        if self.events or connection is None or response is None or not response.events:
            return b""
        if self.out is ResponseProgress.REFRAMED:
            return self._tail
        whole = response.chunked and connection.at_boundary and connection.ends_event
        return b"".join(connection.pieces) if whole and self.out is ResponseProgress.SPLICED else b""

    def comment(self, head_lines: bytes, close: bool) -> None:
        """Write an SSE comment, so that the client does not time out; before the first one, write a stream's head.

        Nothing is written within an event of the worker.
        """
        if self.out is ResponseProgress.NOTHING:
            self.status = 200
            framing = b"transfer-encoding: chunked\r\n" if self._chunks else b""
            framing += b"connection: close\r\n" if close or not self._chunks else b""
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
            self._send_own(head + framing + head_lines + b"\r\n" + self._framed(COMMENT))
            self.out = ResponseProgress.COMMENTS
        elif self.out is ResponseProgress.COMMENTS:
            self._send_own(self._framed(COMMENT))
        elif self._between_events():
            self._send_own(self._framed(QUIET))

    def annotate(self, comment: bytes) -> None:
        """Write an SSE comment, if any, before the rest of a suspended answer."""
        if comment and self.out is ResponseProgress.COMMENTS:
            self._send_own(self._framed(comment))

    def _between_events(self) -> bool:
        """Return whether a comment of the gateway's own can follow the bytes of the worker's stream so far."""
        connection = self.connection
        response = connection.response if connection is not None else None
        if connection is None or response is None or not response.events:
            return False
        if self.out is ResponseProgress.REFRAMED:
            return not self._tail or self._tail.endswith(_EVENT_ENDS)
        inserts = self.out is ResponseProgress.SPLICED and response.chunked and connection.at_boundary
        return inserts and b"".join(connection.pieces).endswith(_EVENT_ENDS)

    def open(self, response: ResponseHead, opening: bytes, head_lines: bytes, keep_alive: bool) -> None:
        """Write the head and `opening`, the bytes that were kept back. Then `read` takes later reads."""
        self.last_read_s = self._time()
        if not response.events:
            self.answer_filter = None if self.answer_filter is None else self.answer_filter.of_body()
        elif self.connection is not None:
            self.events = _first_events(self.connection.pieces)
            self._frame_bytes = _frame_bytes(self.connection.pieces)
        if self.out is ResponseProgress.COMMENTS:
            self._send_pieces()
            self.out = ResponseProgress.REFRAMED
        else:
            self._open_with_head(response, opening, head_lines, keep_alive)
        if self.out is not ResponseProgress.REFRAMED:  # the end of a re-framed answer may follow in this iteration
            self._output.hasten()
        if self.out is ResponseProgress.REFRAMED and self.answer_filter is None:
            self.read = self.reframe
        elif not response.events:
            self.read = self.splice if self.answer_filter is None else self.rewrite
        else:
            self.read = self.splice_events if self.answer_filter is None else self.reframe
            if response.chunked and self.connection is not None:
                self.connection.splice = self.read
            self._output.flush()
            self._write = self._output.write_now

    def _open_with_head(self, response: ResponseHead, opening: bytes, head_lines: bytes, keep_alive: bool) -> None:
        self.status = response.status
        reframed = response.until_close or (response.chunked and self.to_old_client) or self.answer_filter is not None
        self._chunks = not self.to_old_client
        if reframed and self._chunks:
            head_lines += b"transfer-encoding: chunked\r\n"
        if not keep_alive or (reframed and self.to_old_client):
            head_lines += b"connection: close\r\n"
        elif self.to_old_client:
            head_lines += b"connection: keep-alive\r\n"
        head = response_to_client(response, head_lines, reframed=reframed, own_cors=self._own_cors)
        self.own_bytes += len(head)
        if reframed:
            self._send(head)
            self._send_pieces()
            self.out = ResponseProgress.REFRAMED
        else:
            self._send(head + opening)
            self.out = ResponseProgress.SPLICED

    # from the first event on

    def splice_events(self, data: bytes) -> None:
        """Write one read of an event stream unchanged. Events and bytes are counted later, in `flush`."""
        write, time, gaps = self._write, self._time, self._gaps  # local names: calling a slot's value directly is slow
        write(data)
        now_s = time()
        gaps.append(now_s - self.last_read_s)
        self.last_read_s = now_s
        self._reads.append(data)
        if len(gaps) == BATCH_READS or len(data) > _LARGE_READ_BYTES:
            self.flush()
            trim(self.connection.pieces, RECENT_BYTES)  # type: ignore[union-attr]

    def splice(self, data: bytes) -> None:
        """Write one read of any other body unchanged."""
        self.last_read_s = self._time()
        self._send(data)
        pieces = self.connection.pieces  # type: ignore[union-attr]
        if len(data) > _LARGE_READ_BYTES or len(pieces) > 16:
            trim(pieces)

    def reframe(self, data: bytes) -> None:
        """Write the content of one read as a chunk of its own, without the worker's framing."""
        gaps, now_s = self._gaps, self._time()
        gaps.append(now_s - self.last_read_s)
        self.last_read_s = now_s
        pieces, answer_filter = self.connection.pieces, self.answer_filter  # type: ignore[union-attr]
        passed = answer_filter.quick(pieces[0]) if answer_filter is not None and len(pieces) == 1 else None
        if passed is None:
            self.events += _events(data)
            self._send_pieces()
        else:  # one event, as nearly always
            pieces.clear()
            self.events += 1
            if passed:
                self._tail = passed
                framed = b"%x\r\n%s\r\n" % (len(passed), passed) if self._chunks else passed
                self._write(framed)
                self.response_bytes += len(framed)
        if len(gaps) == BATCH_READS:
            self.flush()

    def rewrite(self, data: bytes) -> None:
        self.last_read_s = self._time()
        self._send_pieces()

    def flush(self) -> None:
        if self._reads:
            reads, self._reads = b"".join(self._reads), []
            self.response_bytes += len(reads)
            self.events += _events(reads)
        if self._gaps:
            gaps, self._gaps = self._gaps, []
            self._batch(gaps, self.events)

    def tail(self) -> list[bytes]:
        """Return the body's last bytes, without framing, or what the filter has kept of the usage."""
        if self.answer_filter is not None and (kept := self.answer_filter.tail()):
            return [kept]
        pieces = self.connection.pieces if self.connection is not None else []
        return [self._tail, *pieces]

    def recent(self) -> bytes:
        """Return the last bytes of the body, without framing, those that are not written yet included."""
        pieces = self.connection.pieces if self.connection is not None else []
        pending = b"" if self.answer_filter is None else self.answer_filter.pending
        return b"".join([self._tail[-RECENT_BYTES:], pending, *pieces])

    def paced(self) -> None:
        """Restart the idle time of the worker: it could not send while the client did not read."""
        self.last_read_s = self._time()
        self._progress().seen(self.last_read_s, self.events, self.response_bytes - self.own_bytes)

    def trickles(self, now_s: float, since_s: float, idle_s: float) -> bool:
        """Return whether the worker has sent almost nothing for `idle_s`. The stream began at `since_s`."""
        self.flush()
        read_bytes = self.response_bytes - self.own_bytes
        return self._progress().stalled(now_s, since_s, idle_s, self.events, read_bytes)

    def _progress(self) -> Trickle:
        if self._trickle is None:
            self._trickle = Trickle()
        return self._trickle

    # the end

    def close(self) -> None:
        self._write = self._batch = self.read = _ignore
        self.connection = None

    def end(self) -> bool:
        """End the response after a complete answer. Return False if the client's connection cannot be reused."""
        if self.out is ResponseProgress.SPLICED:
            assert self.connection is not None
            self.out = ResponseProgress.ENDED
            return self.connection.exact_end
        if self.answer_filter is not None:
            self._send(self._framed(self.answer_filter.rest()))
        return self._end_framed()

    def end_as_event(self) -> bool:
        """Write an answer that is not a stream as the one event of the stream that comments began.

        Return False if the client's connection cannot be reused.
        """
        assert self.connection is not None
        self._send(self._framed(body_event(b"".join(self.connection.pieces), self._path)))
        return self._end_framed()

    def break_off(self, kind: ErrorKind, message: str) -> bool:
        """End a begun stream with an error event.

        Return False if no event can be written and only closing the connection can show the error.
        """
        if self.out is ResponseProgress.ENDED:
            return False
        connection = self.connection
        response = connection.response if connection is not None else None
        reframed = self.out is ResponseProgress.REFRAMED and response is not None and response.events
        if self.out is ResponseProgress.COMMENTS or reframed:
            self._send_own(self._framed(self._event_break() + error_event(kind, message, self._path)))
            return self._end_framed()
        if connection is None or response is None or not (response.events and response.chunked):
            return False
        if not connection.at_boundary:
            return False
        self._send_own(chunk(self._event_break() + error_event(kind, message, self._path)))
        return self._end_framed()

    def _event_break(self) -> bytes:
        """Return the bytes that end an unfinished event of the worker; empty if there is none."""
        if self.out is ResponseProgress.COMMENTS:
            return b""
        if self.out is ResponseProgress.SPLICED:
            return b"" if self.connection is not None and self.connection.ends_event else b"\n\n"
        return b"" if self._tail.endswith((b"\n\n", b"\r\n\r\n")) else b"\n\n"

    def _end_framed(self) -> bool:
        self.out = ResponseProgress.ENDED
        if self._chunks:
            self._send(LAST_CHUNK)
        return self._chunks

    def _framed(self, piece: bytes) -> bytes:
        return chunk(piece) if self._chunks else piece

    def _send_pieces(self) -> None:
        assert self.connection is not None
        content = b"".join(self.connection.pieces)
        self.connection.pieces.clear()
        if self.answer_filter is None:
            self._tail = (self._tail + content)[-TAIL_BYTES:]
        else:
            content = self.answer_filter.feed(content)
            self._tail = content or self._tail
            if self.answer_filter.broken:
                self.connection.give_up_soon()
        self._send(self._framed(content))

    def _send_own(self, data: bytes) -> None:
        self.own_bytes += len(data)
        self._send(data)

    def _send(self, data: bytes) -> None:
        if data:
            self._write(data)
            self.response_bytes += len(data)


def _ignore(*_: object) -> None: ...
