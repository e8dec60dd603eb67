"""Keep a worker's answer back until its first real event."""

from __future__ import annotations

from router.gateway.flow.attempt.transitions import AttemptState
from router.gateway.flow.outcomes import AttemptEvent
from router.gateway.http.upstream.connection import UpstreamConnection
from router.gateway.http.upstream.response_head import ResponseHead
from router.requests.answers.sse import FirstEvent, StreamError

# Comments and part of an event may come before the first real event. More bytes than this are no event stream.
HELD_BYTES = 1_048_576

WHOLE_ANSWER_BYTES = 65_536
"""A body that is no stream is kept until it is whole, up to this size."""


NOT_FOUND_BYTES = 4_096
"""A 404 whose body is longer, framing included, is passed on unread."""
ERROR_BYTES = 65_536
"""A server error whose body is longer, framing included, is not passed on."""


class Opening:
    """The bytes of one attempt's answer before its first real event.

    `refused` is the 4xx status of a stream whose first event is an error about the request; otherwise 0. `reason` says
    why an answer fails. `commented` is True after comments were written to the client. An answer that is not a stream
    must then become one event, so all of it is kept. With `judged`, a short body that is not a stream is kept until it
    is whole, and a preamble until more follows. An answer that is not for the client is kept by its connection, up to
    `limit_bytes`, and never opens; 0 for one that is for the client.
    """

    __slots__ = (
        "_bytes", "_first", "_judged", "_limit_bytes", "_pieces", "_seen", "commented", "reason", "refused",
    )  # fmt: skip

    def __init__(self, commented: bool, judged: bool, limit_bytes: int) -> None:
        self.commented = commented
        self._judged = judged
        self._limit_bytes = limit_bytes
        self.reason = ""
        self.refused = 0
        self._pieces: list[bytes] = []
        self._bytes = self._seen = 0
        self._first: FirstEvent | None = None

    def feed(
        self, state: AttemptState, data: bytes, connection: UpstreamConnection, response: ResponseHead
    ) -> AttemptEvent:
        """Keep `data`, one read of the body, and classify the answer.

        The body's content, without framing, is in `connection.pieces` already.
        """
        if state is AttemptState.ERROR_BODY:
            self._keep(data)
            return AttemptEvent.ERROR_CUT if connection.raw_bytes > ERROR_BYTES else AttemptEvent.INCOMPLETE
        if self._limit_bytes:
            self.reason = "the prefill's answer is too long"
            return AttemptEvent.INVALID if connection.raw_bytes > self._limit_bytes else AttemptEvent.INCOMPLETE
        self._keep(data)
        if state is AttemptState.NOT_FOUND and connection.raw_bytes <= NOT_FOUND_BYTES:
            return AttemptEvent.INCOMPLETE  # it is judged when it is complete
        return self._judge(connection, response)

    def _keep(self, data: bytes) -> None:
        self._bytes += len(data)
        if not self.commented:
            self._pieces.append(data)

    def _judge(self, connection: UpstreamConnection, response: ResponseHead) -> AttemptEvent:
        pieces = connection.pieces
        if not response.events:
            if self.commented:
                return self._incomplete()
            if self._judged and not connection.complete and self._bytes <= WHOLE_ANSWER_BYTES:
                return AttemptEvent.PART
            return AttemptEvent.OPEN if pieces else AttemptEvent.INCOMPLETE
        first = self._first
        if first is None:
            first = self._first = FirstEvent()
        start, self._seen = self._seen, len(pieces)
        for piece in pieces[start:]:
            judged = first.feed(piece)
            if isinstance(judged, StreamError):
                return self._failed(judged)
            if judged:
                return AttemptEvent.OPEN
        verdict = self._incomplete()
        if verdict is AttemptEvent.INCOMPLETE and first.preamble:
            return AttemptEvent.PREAMBLE if self._judged else AttemptEvent.OPEN
        return verdict

    def _failed(self, error: StreamError) -> AttemptEvent:
        if 400 <= error.status < 500:
            self.refused = error.status  # the request is wrong, so no other worker would do better
            return AttemptEvent.OPEN
        # Without the worker's message: it may repeat the prompt, and reasons are logged and kept.
        self.reason = f"error as first event, status {error.status or 'not given'}"
        return AttemptEvent.REFUSED if error.status == 503 else AttemptEvent.ERROR_EVENT

    def _incomplete(self) -> AttemptEvent:
        if self._bytes <= HELD_BYTES:
            return AttemptEvent.INCOMPLETE
        self.reason = "no event among too many bytes"
        return AttemptEvent.INVALID

    def comment(self) -> None:
        """Discard the worker's framing: the client has received a head from the gateway."""
        self.commented = True
        self._pieces.clear()

    def take(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces = []
        self._first = None
        return data
