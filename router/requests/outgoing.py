"""What a worker gets of a request, and the filter that hides the difference in its answer."""

from __future__ import annotations

import re
from typing import ClassVar, Final

import msgspec

EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
HELD_BYTES: Final = 1_048_576
"""Larger incomplete events are passed on as they arrive. None that a filter looks for is that large."""


class AnswerFilter:
    """Passes a stream on, each event once it is complete. Most reads are one chunk with complete events.

    A filter changes or removes those events that it suspects. `taken` is the last that it has changed or removed.
    """

    held_bytes: ClassVar[int] = HELD_BYTES
    __slots__ = ("_edge", "_pending", "_within", "broken", "taken")

    def __init__(self) -> None:
        self._pending = bytearray()
        self._within = False
        """Whether the stream is in the middle of an event that is larger than `HELD_BYTES`."""
        self._edge = b""
        self.taken = b""
        self.broken = ""
        """Why nothing more of the stream may be passed on: its worker must be given up. Empty if it may."""

    def feed(self, content: bytes) -> bytes:
        if self._within:
            return self._let_through(content)
        if not self._pending and content.endswith(b"\n\n") and not self._suspicious(content):
            return content
        pending = self._pending
        searched = max(0, len(pending) - 3)  # an event's end may begin in the last three bytes searched before
        pending += content
        shown: list[bytes] = []
        start = 0
        for end in EVENT_END.finditer(pending, searched):
            event = bytes(pending[start : end.end()])
            shown.append(self._judged(event) if self._suspicious(event) else event)
            start = end.end()
        self._pending = pending[start:] if start else pending
        if len(self._pending) > self.held_bytes:
            shown.append(self._too_long())
            self._edge, self._within = shown[-1][-3:], True
        return b"".join(shown)

    def quick(self, content: bytes) -> bytes | None:
        """Return what passes of a read that has one usual event; None for any other, which must be fed."""
        return None

    def of_body(self) -> AnswerFilter | None:
        """Return the filter for an answer that is no stream; None to pass it on."""
        return None

    def tail(self) -> bytes:
        """Return the part of the answer that reports usage; empty if that has passed by, or has not come."""
        return self.taken

    def has(self, part: AnswerFilter | None) -> bool:
        """Return whether `part` is this filter, or one that gets what this one passes on."""
        return part is self

    @property
    def whole(self) -> bool:
        """Whether the client's stream is complete with what `rest` returns, although the worker's has no end."""
        return False

    @property
    def keeps_ending(self) -> bool:
        """Whether the client's stream ends as the worker has ended it."""
        return False

    @property
    def pending(self) -> bytes:
        return bytes(self._pending)

    def rest(self) -> bytes:
        """Return the rest of a complete stream: an event without an end."""
        rest, self._pending = bytes(self._pending), bytearray()
        return rest

    def _too_long(self) -> bytes:
        """Return the beginning of an event that is longer than `held_bytes`. The rest of it passes as it comes."""
        return AnswerFilter.rest(self)

    def _let_through(self, content: bytes) -> bytes:
        seen = self._edge + content
        end = EVENT_END.search(seen)
        if end is None:
            self._edge = seen[-3:]
            return content
        cut = end.end() - len(self._edge)
        self._within = False
        return content[:cut] + (self.feed(content[cut:]) if cut < len(content) else b"")

    def _suspicious(self, content: bytes) -> bool:
        """Return whether `content`, one or more events, may have one that the filter changes."""
        raise NotImplementedError

    def _judged(self, event: bytes) -> bytes:
        """Return what the client gets for a suspicious event; empty to remove it."""
        raise NotImplementedError


class OutgoingBody(msgspec.Struct, frozen=True):
    """The body for the worker, and the filter for its answer, if the answer must be changed."""

    body: bytes
    answer_filter: AnswerFilter | None = None
