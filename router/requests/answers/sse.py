"""Detection of the first real event in an event stream.

A worker sends a stream's head before prefill. Until the first token, comments mean nothing and an error event means
that the request failed. Neither may reach the client while another worker can still answer. The introductory events of
a Responses stream count as comments, because vLLM 0.33 sends them at once.
"""

from __future__ import annotations

import re

import msgspec

from backends.foreign_json import json_decoder
from router.requests.answers.json_structs import EventError
from router.requests.outgoing import EVENT_END

_DATA = re.compile(rb"^data:[ ]?([^\r\n]*+)", re.MULTILINE)
_LINE_END = re.compile(rb"\r\n|\n|\r")
# A first event larger than this counts as content, since errors are short.
FIRST_EVENT_BYTES = 65_536
# Introductory events repeat the request's instructions and tools. Beyond this size they are passed on.
INTRODUCTION_BYTES = 524_288
_INTRODUCTIONS = frozenset({b"response.created", b"response.queued", b"response.in_progress"})
_INTRODUCING = re.compile(rb"event: ?(?:" + b"|".join(map(re.escape, _INTRODUCTIONS)) + rb")[\r\n]")
# Events without content, which a worker sends just before its first token. In chat streams they only give the role.
_PREAMBLE = re.compile(
    rb"event: ?(?:message_start|ping|response\.output_item\.added|response\.content_part\.added)[\r\n]"
)
_EMPTY = re.compile(rb'"content"\s*:\s*""')
# Error types of the Messages API, which sends no status code in an event.
_STATUS_BY_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "overloaded_error": 503,
}


_DECODER = json_decoder(EventError)


class StreamError(msgspec.Struct, frozen=True):
    """An error event before any content. `status` is 0 if the event names none."""

    status: int
    message: str


class FirstEvent:
    """Reads body bytes until the first event with content or an error in its place.

    `preamble` is True after an event that comes just before the first content.
    """

    __slots__ = ("_introduced_bytes", "_pending", "preamble")

    def __init__(self) -> None:
        self._pending = bytearray()
        self._introduced_bytes = 0
        self.preamble = False

    def feed(self, piece: bytes) -> bool | StreamError:
        verdict = self._judge(piece)
        if verdict is not False:
            self._pending = bytearray()  # the stream keeps this object, not its first event
        return verdict

    def _judge(self, piece: bytes) -> bool | StreamError:
        pending = self._pending
        # an event's end may begin in the last three bytes searched before
        searched = max(0, len(pending) - 3)
        pending += piece
        start = 0
        while (end := EVENT_END.search(pending, max(start, searched))) is not None:
            event = bytes(pending[start : end.start()])
            verdict = judge_event(event)
            if verdict is True and _is_preamble(event):
                self.preamble = True
            elif verdict is not False:
                return verdict
            if _INTRODUCING.match(pending, start):
                self._introduced_bytes += end.end() - start
            start = end.end()
        del pending[:start]
        if _INTRODUCING.match(pending):
            return len(pending) + self._introduced_bytes > INTRODUCTION_BYTES
        return len(pending) > FIRST_EVENT_BYTES


def judge_event(event: bytes) -> bool | StreamError:
    """Return False for comments, empty and introductory events, the error of an error event, and True otherwise."""
    payload: list[bytes] = []
    name = b""
    for line in _LINE_END.split(event):
        field, _, value = line.partition(b":")
        if field == b"data":
            payload.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.strip()
    if (not payload and not name) or name in _INTRODUCTIONS:
        return False
    return _error(b"\n".join(payload), name == b"error") or True


def _is_preamble(event: bytes) -> bool:
    if _PREAMBLE.match(event):
        return True
    return b'"role"' in event and _EMPTY.search(event) is not None and b'"finish_reason":"' not in event


def data_of(event: bytes) -> bytes:
    return b"\n".join(_DATA.findall(event))


def _error(payload: bytes, named: bool) -> StreamError | None:
    try:
        frame = _DECODER.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return StreamError(0, payload[:200].decode("utf-8", "replace")) if named else None
    if frame.error:
        inner = frame.error if isinstance(frame.error, dict) else {"message": str(frame.error)}
        status = _status(inner.get("code")) or _STATUS_BY_TYPE.get(str(inner.get("type")), 0)
        return StreamError(status, str(inner.get("message"))[:200])
    if named or frame.object == "error":
        return StreamError(_status(frame.code), str(frame.message)[:200])
    return None


def _status(code: object) -> int:
    return code if isinstance(code, int) and not isinstance(code, bool) else 0
