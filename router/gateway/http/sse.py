"""Finding the first real event of an event stream.

A stream's head goes out before prefill, so comments say nothing and an error event means the request failed before
it produced anything: neither may reach the client while another worker can still answer. The same holds for the events
by which a Responses stream introduces itself: vLLM 0.33 sends them at once, everything else from the first token on.
"""

from __future__ import annotations

import re

import msgspec

from router.gateway.http.json_structs import EventError

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE_END = re.compile(rb"\r\n|\n|\r")
# A first event larger than this is content, not an error: judge it by what is there.
FIRST_EVENT_BYTES = 65_536
# Introductions repeat the request's instructions and tools. More than this is let through before the first token.
INTRODUCTION_BYTES = 524_288
_INTRODUCTIONS = frozenset({b"response.created", b"response.queued", b"response.in_progress"})
_INTRODUCING = re.compile(rb"event: ?(?:" + b"|".join(map(re.escape, _INTRODUCTIONS)) + rb")[\r\n]")
# What the Messages API's error types say; it gives no number.
_STATUS_BY_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "overloaded_error": 503,
}


_DECODER = msgspec.json.Decoder(EventError)


class StreamError(msgspec.Struct, frozen=True):
    """An error event that came first: `status` as far as it says one (0 if not)."""

    status: int
    message: str


class FirstEvent:
    """Fed with body bytes until it has seen a real event, or an error in its place."""

    __slots__ = ("_introduced_bytes", "_pending")

    def __init__(self) -> None:
        self._pending = bytearray()
        self._introduced_bytes = 0

    def feed(self, piece: bytes) -> bool | StreamError:
        """False while only comments and introductions came, True from the first real event on, or the error that came
        first."""
        verdict = self._judge(piece)
        if verdict is not False:
            self._pending = bytearray()  # a stream keeps this object to its end, and need not keep its first event
        return verdict

    def _judge(self, piece: bytes) -> bool | StreamError:
        pending = self._pending
        # what has been searched before is searched again only as far as an end may begin in it
        searched = max(0, len(pending) - 3)
        pending += piece
        start = 0
        while (end := _EVENT_END.search(pending, max(start, searched))) is not None:
            verdict = judge_event(bytes(pending[start : end.start()]))
            if verdict is not False:
                return verdict
            if _INTRODUCING.match(pending, start):
                self._introduced_bytes += end.end() - start
            start = end.end()
        del pending[:start]
        if _INTRODUCING.match(pending):
            return len(pending) + self._introduced_bytes > INTRODUCTION_BYTES
        return len(pending) > FIRST_EVENT_BYTES


def judge_event(event: bytes) -> bool | StreamError:
    """False for comments, empty events and introductions, the error of an error event, True for everything else."""
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
