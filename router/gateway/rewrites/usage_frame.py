"""The usage frame that was asked for in the client's name, taken out of its stream again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from router.gateway.http.json_structs import EventUsage

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_DATA = re.compile(rb"^data:[ ]?(.*?)\r?$", re.MULTILINE)
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')
_STAMP = re.compile(rb'(,"system_fingerprint"\s*:\s*"(?:[^"\\]++|\\.)*+")(,"[^"\\]*"|\})')
HELD_BYTES = 1_048_576
"""An event that is not complete after so many bytes is passed on as it comes: no usage frame is that large."""


class Stamp(NamedTuple):
    """What a worker writes into the frame that ends a choice when no usage frame follows, and what comes behind it.

    vLLM 0.33 puts its ``system_fingerprint`` into the usage frame instead where there is one.
    """

    text: bytes
    follower: bytes

    def put(self, event: bytes) -> bytes:
        """`event` with the stamp in its place."""
        at = event.rfind(self.follower)
        return event if at < 0 else event[:at] + self.text + event[at:]


class StreamEnding(NamedTuple):
    """How a worker ends the streams of which no usage is asked."""

    reports_usage: bool
    stamp: Stamp | None


def plain_ending(tail: Iterable[bytes], reports_usage: bool) -> StreamEnding | None:
    """Learned from the last bytes of a stream that was not tampered with; None where its end is not among them."""
    for event in reversed(_EVENT_END.split(b"".join(tail))):
        if _FINISH.search(event):
            found = _STAMP.search(event)
            return StreamEnding(reports_usage, None if found is None else Stamp(found[1], found[2]))
    return None


_DECODER = msgspec.json.Decoder(EventUsage)


class UsageFrame:
    """Fed with a stream's content, gives back what the client is to see: all but the one frame without choices.

    An event is let through when it is complete; what vLLM sends as one chunk comes as one read, mostly. `taken` is the
    frame, once it has come.
    """

    __slots__ = ("_edge", "_pending", "_stamp", "_within", "taken")

    def __init__(self, stamp: Stamp | None) -> None:
        self._stamp = stamp
        self._pending = bytearray()
        self._within = False
        """In the middle of an event too large to be held."""
        self._edge = b""
        self.taken = b""

    def feed(self, content: bytes) -> bytes:
        """More of the stream; returns what may go on."""
        if self._within:
            return self._let_through(content)
        if not self._pending and content.endswith(b"\n\n") and not self._suspicious(content):
            return content
        pending = self._pending
        searched = max(0, len(pending) - 3)  # an event's end may begin in what has been searched before
        pending += content
        shown: list[bytes] = []
        start = 0
        for end in _EVENT_END.finditer(pending, searched):
            shown.append(self._judged(bytes(pending[start : end.end()])))
            start = end.end()
        self._pending = pending[start:] if start else pending
        if len(self._pending) > HELD_BYTES:
            shown.append(self.rest())
            self._edge, self._within = shown[-1][-3:], True
        return b"".join(shown)

    def rest(self) -> bytes:
        """The stream is complete: what is left of it, an event without an end."""
        rest, self._pending = bytes(self._pending), bytearray()
        return rest

    def _let_through(self, content: bytes) -> bytes:
        seen = self._edge + content
        end = _EVENT_END.search(seen)
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
        frame = _DECODER.decode(b"\n".join(_DATA.findall(event)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return frame.choices == [] and isinstance(frame.usage, dict)
