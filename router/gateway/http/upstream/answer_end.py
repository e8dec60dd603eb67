"""Whether an answer that is complete for HTTP is complete for its API, too.

A proxy that lost its worker, or a killed process, ends HTTP cleanly. A worker that shuts down ends its requests with
the finish reason ``abort``, which no client asked for. Neither is an answer.

Generated text cannot look like a member of an event, because its quotes are escaped. Members that hold the client's own
JSON can (the input of a tool, the schema of a function), so objects that may hold them are decoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import msgspec

from backends.foreign_json import json_decoder
from router.gateway.http.upstream.response_head import ResponseHead
from router.requests.answers.json_structs import EndedMessage, EndedResponse, EventError, ResponseEnd
from router.requests.answers.sse import StreamError, data_of, judge_event
from router.requests.outgoing import EVENT_END

RECENT_BYTES = 8_192
"""How much of the end of a stream is kept to judge it by."""

_FIELD = re.compile(rb"(?:data|event|id|retry)?:")
# Expressions are applied near a word that `rfind` has found, because a search of the whole tail is slow.
_DONE = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]")
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')
_ABORT = re.compile(rb'"finish_reason"\s*:\s*"abort"')
_STOP = re.compile(rb'(?:^|[\r\n])event: ?message_stop[\r\n]|"type"\s*:\s*"message_stop"')
_STOP_REASON = re.compile(rb'"stop_reason"\s*:\s*"')
_NO_STOP_REASON = re.compile(rb'"stop_reason"\s*:\s*null')
_NAMES = re.compile(rb'(?:^|[\r\n])event: ?$|"type"\s*:\s*"$')
_NAME = re.compile(rb"response\.[a-z_.]+")
_LEAD_BYTES = 40
"""How far before the found word an expression may begin."""
_LAST_BYTES = 4_096
"""Where signs of an abort are looked for, from the end. Only usage and short members follow them."""
_RESPONSE_ENDS = frozenset({b"response.completed", b"response.failed", b"response.incomplete", b"response.cancelled"})
_NO_OUTPUT = re.compile(rb'"output_tokens"\s*:\s*0\b')
_ENDED_STATUSES = ("completed", "incomplete")

_EVENT = json_decoder(EventError)
_MESSAGE = json_decoder(EndedMessage)
_RESPONSE = json_decoder(EndedResponse)
_RESPONSE_END = json_decoder(ResponseEnd)


class AnswerFault(IntEnum):
    """What is wrong with an answer that HTTP shows as complete, or as going on."""

    NONE = 0
    ABORTED = 1
    """The worker gave the request up, and ends the answer as if it were whole."""
    CUT = 2
    """The stream has ended, and the event with which its API ends a stream is missing."""
    USELESS = 3
    """A filter of the answer passes nothing more of it on."""


REASONS: Final = {
    AnswerFault.ABORTED: "the worker aborted the request",
    AnswerFault.CUT: "the stream ended without its last event",
    AnswerFault.USELESS: "the rest of it must not be passed on",
}
# Module constants, because looking up a member of an enum is slow.
_NONE: Final = AnswerFault.NONE
_ABORTED: Final = AnswerFault.ABORTED
_CUT: Final = AnswerFault.CUT


class AnswerEnd:
    """How complete answers end; here those of chat completions and completions.

    The `recent` bytes of a stream are its last `RECENT_BYTES` or more, without framing, or all of it.
    """

    def judge(
        self, data: bytes, recent: Callable[[], bytes], response: ResponseHead, *, complete: bool, begun: bool
    ) -> AnswerFault:
        """Judge an answer with status 200 as far as it has come, with the read `data`.

        `complete`: HTTP has ended it. `begun`: part of it has been passed on.
        """
        if not response.events:
            whole = complete and not (begun and response.until_close)
            return self.of_body(recent()) if whole else _NONE
        ended = complete and response.length is None
        return self.of_stream(recent(), ended) if ended or self.suspects(data) else _NONE

    def suspects(self, data: bytes) -> bool:
        """Return whether a read of a stream may end it, so that it must be judged before the read is passed on."""
        return data.rfind(b"[DONE]") >= 0 or data.rfind(b'"abort"') >= 0

    def of_stream(self, recent: bytes, complete: bool) -> AnswerFault:
        """Judge a stream with status 200. `complete`: HTTP has ended it."""
        if _near(_ABORT, b'"abort"', recent, max(0, len(recent) - _LAST_BYTES)):
            return _ABORTED
        if not complete or recent.endswith(b"data: [DONE]\n\n") or _near(_DONE, b"[DONE]", recent):
            return _NONE
        recent = _read_events(recent)
        return _NONE if _FINISH.search(recent) else _cut(recent)

    def of_body(self, body: bytes) -> AnswerFault:
        """Judge a body with status 200 that is no stream: the whole one, or the end of a long one."""
        return _ABORTED if _near(_ABORT, b'"abort"', body) else _NONE


class MessagesEnd(AnswerEnd):
    """How complete answers of the Messages API end. For an aborted request vLLM gives no stop reason."""

    def suspects(self, data: bytes) -> bool:
        return data.rfind(b"message_stop") >= 0

    def of_stream(self, recent: bytes, complete: bool) -> AnswerFault:
        recent = _read_events(recent)
        if not _near(_STOP, b"message_stop", recent):
            return _cut(recent) if complete else _NONE
        last = recent[max(0, len(recent) - _LAST_BYTES) :]
        delta = last.rfind(b"message_delta")
        if delta < 0:
            return _NONE
        begin = max(last.rfind(b"\n\n", 0, delta), last.rfind(b"\n\r\n", 0, delta), 0)
        return _ABORTED if _NO_STOP_REASON.search(last, begin) else _NONE

    def of_body(self, body: bytes) -> AnswerFault:
        if _near(_STOP_REASON, b'"stop_reason"', body):
            return _NONE
        try:
            message = _MESSAGE.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _NONE
        return _ABORTED if message.type == "message" and message.stop_reason is None else _NONE


class ResponsesEnd(AnswerEnd):
    """How complete answers of the Responses API end.

    vLLM calls an aborted response completed. It shows if no token was generated, since even an empty answer has one for
    its end, and if its status is "cancelled".
    """

    def suspects(self, data: bytes) -> bool:
        return data.rfind(b"response.completed") >= 0 or data.rfind(b"response.incomplete") >= 0

    def of_stream(self, recent: bytes, complete: bool) -> AnswerFault:
        recent = _read_events(recent)
        name = _last_name(recent)
        if name not in _RESPONSE_ENDS:
            return _cut(recent, of_whole=not name) if complete else _NONE
        if not _may_be_empty(recent):
            return _NONE
        event, _ = _last_event(recent)
        try:
            ended = _RESPONSE_END.decode(data_of(event)).response
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _NONE
        return _NONE if ended is None else _of_response(ended)

    def of_body(self, body: bytes) -> AnswerFault:
        if not _may_be_empty(body):
            return _NONE
        try:
            return _of_response(_RESPONSE.decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _NONE


_CHOICES: Final = AnswerEnd()
ANSWER_ENDS: Final[dict[str, AnswerEnd]] = {
    "/v1/chat/completions": _CHOICES,
    "/v1/completions": _CHOICES,
    "/v1/messages": MessagesEnd(),
    "/v1/responses": ResponsesEnd(),
}
"""By the pattern of the route. Of all other paths it is not known how their answers end."""


def _near(expression: re.Pattern[bytes], word: bytes, text: bytes, begin: int = 0) -> bool:
    at = text.rfind(word, begin)
    return at >= 0 and expression.search(text, max(0, at - _LEAD_BYTES)) is not None


def _last_name(recent: bytes) -> bytes:
    """Return the name of the last event of a Responses stream that shows one; empty if none does."""
    at = len(recent)
    while (at := recent.rfind(b"response.", 0, at)) >= 0:
        name = _NAME.match(recent, at)
        if name is not None and _NAMES.search(recent[max(0, at - _LEAD_BYTES) : at]):
            return name[0]
    return b""


def _may_be_empty(text: bytes) -> bool:
    begin = max(0, len(text) - _LAST_BYTES)
    return _near(_NO_OUTPUT, b'"output_tokens"', text, begin) or text.rfind(b'"cancelled"', begin) >= 0


def _of_response(response: EndedResponse) -> AnswerFault:
    usage = response.usage
    if response.object != "response":
        return _NONE
    empty = response.status in _ENDED_STATUSES and usage is not None and usage.output_tokens == 0
    return _ABORTED if empty or response.status == "cancelled" else _NONE


def _cut(recent: bytes, of_whole: bool = True) -> AnswerFault:
    """Judge a stream that HTTP has ended, and that has no last event of its API.

    An error event ends a stream, too. Nothing can be said of an event whose beginning is not there, if its API shows
    an event by its beginning (`of_whole`), and of a stream without an event.
    """
    event, whole = _last_event(recent)
    if not event or (of_whole and not whole) or isinstance(judge_event(event), StreamError):
        return _NONE
    return _CUT


def _read_events(recent: bytes) -> bytes:
    """Return the events that a client reads: without the beginning of one whose end is missing."""
    if recent.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")):
        return recent
    end = max(recent.rfind(b"\n\n"), recent.rfind(b"\n\r\n"), recent.rfind(b"\r\r")) + 1
    try:
        _EVENT.decode(data_of(recent[end:]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return recent[:end]
    return recent  # many clients read a last event without an empty line after it


def _last_event(recent: bytes) -> tuple[bytes, bool]:
    """Return the last real event, complete or not, and whether its beginning is there.

    The event is empty if there is none.
    """
    events = EVENT_END.split(recent)
    for index in range(len(events) - 1, -1, -1):
        event = events[index].lstrip(b"\r\n")
        whole = index > 0 or _FIELD.match(event) is not None
        if event and (not whole or judge_event(event) is not False):
            return event, whole
    return b"", True
