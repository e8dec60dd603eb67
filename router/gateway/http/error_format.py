"""How each API tells its clients that something went wrong, as a body and as an event in a started stream.

Anthropic's clients read errors in that API's own shape, and only such events of a stream as have a name. OpenAI's read
an error object in any event; for its Responses API every event has a name and a type, too.
"""

from __future__ import annotations

from typing import Any

import msgspec

from router import errors
from router.errors import ErrorKind, Fault, RequestError

DONE_EVENT = b"data: [DONE]\n\n"
_MESSAGES = "/v1/messages"
_RESPONSES = "/v1/responses"
# Anthropic's types by status; all others are by whose fault it is.
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: RequestError, path: str) -> bytes:
    """The answer to a request to `path` that failed."""
    if path.startswith(_MESSAGES):
        return msgspec.json.encode(_anthropic(error.kind, error.message))
    return errors.body(error.kind, error.message, error.param)


def error_event(kind: ErrorKind, message: str, path: str) -> bytes:
    """What tells a reader of a started stream what happened, and ends the stream as that API does."""
    if path.startswith(_MESSAGES):
        return _named(msgspec.json.encode(_anthropic(kind, message)))
    body = errors.body(kind, message)
    if path.startswith(_RESPONSES):
        # "error" is what the client library looks at, the others are the event's own fields
        own = {"type": "error", "code": kind.spec.code, "message": message, "param": None}
        return _named(msgspec.json.encode({**own, **msgspec.json.decode(body)}))
    return b"data: " + body + b"\n\n" + DONE_EVENT


def body_event(body: bytes, path: str) -> bytes:
    """A whole body, mostly an error, as one event, where the stream's head has already gone out."""
    data = body.strip().replace(b"\n", b"\ndata: ")
    if path.startswith((_MESSAGES, _RESPONSES)):
        return _named(data)
    return b"data: " + data + b"\n\n" + DONE_EVENT


def is_error(body: bytes) -> bool:
    """Whether `body` is a JSON object with an error in it."""
    try:
        return isinstance(msgspec.json.decode(body, type=dict[str, Any]).get("error"), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _named(data: bytes) -> bytes:
    return b"event: error\ndata: " + data + b"\n\n"


def _anthropic(kind: ErrorKind, message: str) -> dict[str, Any]:
    spec = kind.spec
    default = "invalid_request_error" if spec.fault is Fault.CLIENT else "api_error"
    error = {"type": _ANTHROPIC_TYPES.get(spec.status, default), "message": message, "code": spec.code}
    return {"type": "error", "error": error}
