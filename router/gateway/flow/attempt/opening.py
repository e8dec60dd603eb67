"""Keep a worker's answer back until its first real event."""

from __future__ import annotations

from enum import Enum
from typing import Final

from router.gateway.http.upstream.connection import UpstreamConnection
from router.gateway.http.upstream.response_head import ResponseHead
from router.gateway.http.upstream.sse import FirstEvent, StreamError

# Comments and part of an event may come before the first real event. More bytes than this are no event stream.
HELD_BYTES = 1_048_576


class Verdict(Enum):
    """The classification of the bytes so far."""

    INCOMPLETE = 0
    """No event yet."""
    OPEN = 1
    """The answer has begun."""
    ERROR = 2
    """The first event of the stream is an error: `Opening.error`."""
    TOO_LONG = 3
    """More than `HELD_BYTES` without an event."""
    PREAMBLE = 4
    """Events without content, which come just before the first content."""
    PART = 5
    """Part of a body that is no stream. A whole one can be judged."""


# Module constants, because looking up a member of an enum is slow.
_OPEN: Final = Verdict.OPEN
_INCOMPLETE: Final = Verdict.INCOMPLETE
WHOLE_ANSWER_BYTES = 65_536
"""A body that is no stream is kept until it is whole, up to this size."""


class Opening:
    """The bytes of one attempt's answer before its first real event.

    `refused` is the 4xx status of a stream whose first event is an error about the request; otherwise 0. `commented`
    is True after comments were written to the client. An answer that is not a stream must then become one event, so
    all of it is kept. With `judged`, a short body that is not a stream is kept until it is whole, and a preamble until
    more follows.
    """

    __slots__ = ("_bytes", "_first", "_judged", "_pieces", "_seen", "commented", "error", "refused")

    def __init__(self, commented: bool, judged: bool) -> None:
        self.commented = commented
        self._judged = judged
        self.error: StreamError | None = None
        self.refused = 0
        self._pieces: list[bytes] = []
        self._bytes = self._seen = 0
        self._first: FirstEvent | None = None

    def feed(self, data: bytes, connection: UpstreamConnection, response: ResponseHead) -> Verdict:
        """Keep `data`, one read of the body, and classify the answer.

        The body's content, without framing, is in `connection.pieces` already.
        """
        self._bytes += len(data)
        if not self.commented:
            self._pieces.append(data)
        pieces = connection.pieces
        if not response.events:
            if self.commented:
                return self._incomplete()
            if self._judged and not connection.complete and self._bytes <= WHOLE_ANSWER_BYTES:
                return Verdict.PART
            return _OPEN if pieces else _INCOMPLETE
        first = self._first
        if first is None:
            first = self._first = FirstEvent()
        start, self._seen = self._seen, len(pieces)
        for piece in pieces[start:]:
            judged = first.feed(piece)
            if isinstance(judged, StreamError):
                return self._failed(judged)
            if judged:
                return _OPEN
        verdict = self._incomplete()
        if verdict is _INCOMPLETE and first.preamble:
            return Verdict.PREAMBLE if self._judged else _OPEN
        return verdict

    def _failed(self, error: StreamError) -> Verdict:
        if 400 <= error.status < 500:
            self.refused = error.status  # the request is wrong, so no other worker would do better
            return _OPEN
        self.error = error
        return Verdict.ERROR

    def _incomplete(self) -> Verdict:
        return Verdict.TOO_LONG if self._bytes > HELD_BYTES else _INCOMPLETE

    def comment(self) -> None:
        """Discard the worker's framing: the client has received a head from the gateway."""
        self.commented = True
        self._pieces.clear()

    def take(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces = []
        self._first = None
        return data
