"""Removes a usage frame that the gateway requested and the client did not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from backends.foreign_json import json_decoder
from router.requests.answers.json_structs import EventUsage
from router.requests.answers.sse import data_of
from router.requests.outgoing import EVENT_END, AnswerFilter

_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')
_STAMP = re.compile(rb'(,"system_fingerprint"\s*:\s*"(?:[^"\\]++|\\.)*+")(,"[^"\\]*"|\})')


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


class UsageFrame(AnswerFilter):
    """Removes the usage frame, which has no choices, and keeps it as `taken`."""

    __slots__ = ("_stamp",)

    def __init__(self, stamp: Stamp | None) -> None:
        super().__init__()
        self._stamp = stamp

    def _suspicious(self, content: bytes) -> bool:
        return b'"usage"' in content or (self._stamp is not None and _FINISH.search(content) is not None)

    def _judged(self, event: bytes) -> bytes:
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
