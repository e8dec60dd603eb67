"""Removes a usage frame that the gateway requested and the client did not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

import msgspec

from backends.foreign_json import json_decoder
from router.gateway.http.json_structs import EventUsage
from router.gateway.http.upstream.sse import EVENT_END, data_of

_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')
_STAMP = re.compile(rb'(,"system_fingerprint"\s*:\s*"(?:[^"\\]++|\\.)*+")(,"[^"\\]*"|\})')
HELD_BYTES = 1_048_576
"""Larger incomplete events are passed on as they arrive. No usage frame is that large."""


class Stamp(NamedTuple):
    """The member that a worker writes into the last frame of a choice when no usage frame follows.

    `text` is vLLM 0.33's ``system_fingerprint`` member, `follower` the text after it. With a usage frame, vLLM writes
    the member there instead.
    """

    text: bytes
    follower: bytes

    def put(self, event: bytes) -> bytes:
        at = event.rfind(self.follower)
        return event if at < 0 else event[:at] + self.text + event[at:]


class StreamEnding(NamedTuple):
    """How a worker ends a stream without a request for usage."""

    reports_usage: bool
    stamp: Stamp | None


def plain_ending(tail: Iterable[bytes], reports_usage: bool) -> StreamEnding | None:
    """Return the ending of an unchanged stream from its last bytes, or None if they do not contain it."""
    for event in reversed(EVENT_END.split(b"".join(tail))):
        if _FINISH.search(event):
            found = _STAMP.search(event)
            return StreamEnding(reports_usage, None if found is None else Stamp(found[1], found[2]))
    return None


_DECODER = json_decoder(EventUsage)


class UsageFrame:
    """Filters a stream: passes on all events but the usage frame, which has no choices.

    An event is passed on once it is complete. Most reads are one chunk with complete events. `taken` is the removed
    frame.
    """

    asked_for: ClassVar[bool] = True
    """The gateway has asked the worker for a usage frame."""
    __slots__ = ("_edge", "_pending", "_stamp", "_within", "taken")

    def __init__(self, stamp: Stamp | None) -> None:
        self._stamp = stamp
        self._pending = bytearray()
        self._within = False
        """Whether the stream is in the middle of an event that is larger than `HELD_BYTES`."""
        self._edge = b""
        self.taken = b""

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
            shown.append(self._judged(bytes(pending[start : end.end()])))
            start = end.end()
        self._pending = pending[start:] if start else pending
        if len(self._pending) > HELD_BYTES:
            shown.append(self.rest())
            self._edge, self._within = shown[-1][-3:], True
        return b"".join(shown)

    def of_body(self) -> UsageFrame | None:
        """Return the filter for an answer that is no stream; None to pass it on."""
        return None

    def tail(self) -> bytes:
        """Return the part of the answer that reports usage; empty if that has passed by, or has not come."""
        return self.taken

    @property
    def pending(self) -> bytes:
        return bytes(self._pending)

    def rest(self) -> bytes:
        """Return the rest of a complete stream: an event without an end."""
        rest, self._pending = bytes(self._pending), bytearray()
        return rest

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
        return b'"usage"' in content or (self._stamp is not None and _FINISH.search(content) is not None)

    def _judged(self, event: bytes) -> bytes:
        if not self._suspicious(event):
            return event
        if not self.taken and _is_usage_frame(event):
            self.taken = event
            return b""
        if self._stamp is not None and _FINISH.search(event) and b'"system_fingerprint"' not in event:
            return self._stamp.put(event)
        return event


def _is_usage_frame(event: bytes) -> bool:
    try:
        frame = _DECODER.decode(data_of(event))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    choices = bytes(frame.choices)
    no_choices = choices.startswith(b"[") and choices[1:].lstrip(b" \t\r\n") == b"]"
    return no_choices and bytes(frame.usage).startswith(b"{")
