"""What the picker learns from an answer that passes it: its status, who served it, first token, usage and end."""

from __future__ import annotations

from typing import Final

from policies.view import WorkerId
from router.picker.pick import Pick
from router.picker.protocol.ext_proc_pb2 import HttpBody, ProcessingRequest
from router.picker.protocol.names import LB_NAMESPACE, SERVED
from router.picker.request_headers import fields_of
from router.placement.request import FailurePoint, Usage
from router.placement.ticket_life import Tickets
from router.requests.answers.sse import FirstEvent
from router.requests.answers.usage import TAIL_BYTES, find_usage, trim
from router.requests.pins import ID_WITHIN_BYTES, Pins, stored_response_id

_EVENTS: Final = b"text/event-stream"
_PLAIN: Final = (b"", b"identity")
_OVERLOADED: Final = 503


class AnswerReader:
    """Reads one answer for its `pick`, and ends the pick with it."""

    __slots__ = (
        "_begun", "_events", "_first", "_pick", "_pieces", "_pins", "_plain", "_retry_after_s", "_start", "_tickets",
        "over", "status", "text_bytes",
    )  # fmt: skip

    def __init__(self, pick: Pick, tickets: Tickets, pins: Pins) -> None:
        self._pick = pick
        self._tickets = tickets
        self._pins = pins
        self._first: FirstEvent | None = None
        """Looks for the first token; None if the answer is no stream, or its first token has come."""
        self._events = 0
        self._begun = False
        self._plain = False
        self._pieces: list[bytes] = []
        self._start = b""
        self._retry_after_s: float | None = None
        self.status = 0
        self.text_bytes = 0
        self.over = False
        """The answer has ended, and the pick with it."""

    def take(self, message: ProcessingRequest, now_s: float) -> None:
        kind = message.WhichOneof("request")
        if self.over:
            return
        if kind == "response_headers":
            self._headers(message, now_s)
        elif kind == "response_body":
            self._body(message.response_body, now_s)
        elif kind == "response_trailers":
            self._end()

    def _headers(self, message: ProcessingRequest, now_s: float) -> None:
        fields = fields_of(message.response_headers.headers)
        status = fields.get(b":status", b"")
        self.status = int(status) if status.isdigit() else 200
        retry_after = fields.get(b"retry-after", b"")
        self._retry_after_s = float(retry_after) if retry_after.isdigit() else None
        self._plain = fields.get(b"content-encoding", b"").lower() in _PLAIN
        if self._plain and self.status < 400 and fields.get(b"content-type", b"").lower().startswith(_EVENTS):
            self._first = FirstEvent()
        self._begun = self._pick.answered = True
        by_namespace = message.metadata_context.filter_metadata
        if LB_NAMESPACE in by_namespace and SERVED in by_namespace[LB_NAMESPACE].fields:
            served = by_namespace[LB_NAMESPACE].fields[SERVED].string_value
            self._pick.served_by(served.strip(), now_s)
        if message.response_headers.end_of_stream:
            self._end()

    def _body(self, part: HttpBody, now_s: float) -> None:
        piece = part.body
        self.text_bytes += len(piece)
        if self._plain and piece:
            self._read(piece, now_s)
        if part.end_of_stream:
            self._end()

    def _read(self, piece: bytes, now_s: float) -> None:
        self._pieces.append(piece)
        trim(self._pieces, TAIL_BYTES)
        self._note_stored(piece)
        if self._first is not None and self._first.feed(piece):
            self._first = None
            self._pick.first_token(now_s)
        if self._pick.ticket is not None:
            self._events += piece.count(b"\n\n")
            self._tickets.progress(self._pick.ticket, self._events)

    def _note_stored(self, piece: bytes) -> None:
        """Remember who made a stored response, because later requests about it must go there."""
        pick = self._pick
        if not pick.incoming.route.stores or len(self._start) >= ID_WITHIN_BYTES or pick.ticket is None:
            return
        self._start = (self._start + piece)[:ID_WITHIN_BYTES]
        response_id = stored_response_id([self._start])
        if response_id is not None:
            self._pins.learn(response_id, WorkerId(pick.ticket.candidate.id))

    def _end(self) -> None:
        """End the pick with a complete answer."""
        self.over = True
        if self.status == _OVERLOADED:
            self._pick.fail(FailurePoint.REFUSED, self.status, "it answered 503", self._retry_after_s)
        elif self.status >= 500:
            self._pick.fail(FailurePoint.ANSWERED, self.status, f"it answered {self.status}")
        else:
            self._pick.finish(find_usage(self._pieces) if self._pieces else Usage(), self.status, self.text_bytes)

    def closed(self, *, sees_end: bool) -> None:
        """End the pick because the gateway's stream has ended. `sees_end`: a complete answer would have said so."""
        if self.over:
            return
        if self._begun and not sees_end:
            self._end()
        else:
            self.over = True
            self._pick.cancel(self.text_bytes)
