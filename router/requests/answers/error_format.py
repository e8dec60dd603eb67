"""Errors in the format of each API, as a response body or as an event in a started stream.

Anthropic's clients expect that API's error object, and read only named events of a stream. OpenAI's clients read an
error object in any event. Events of the Responses API also need a name and a type.
"""

from __future__ import annotations

from typing import Any

import msgspec

from backends.foreign_json import read_json
from router import errors
from router.errors import ErrorKind, Fault, RequestError

DONE_EVENT = b"data: [DONE]\n\n"
_MESSAGES = "/v1/messages"
_RESPONSES = "/v1/responses"
# Anthropic's error types by status. For all others the type follows from the fault.
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: RequestError, path: str) -> bytes:
    if path.startswith(_MESSAGES):
        return msgspec.json.encode(_anthropic(error.kind, error.message))
    return errors.body(error.kind, error.message, error.param)


def error_event(kind: ErrorKind, message: str, path: str) -> bytes:
    """Return an error event for a started stream, and the end of the stream as the API of `path` writes it."""
    if path.startswith(_MESSAGES):
        return _named(msgspec.json.encode(_anthropic(kind, message)))
    body = errors.body(kind, message)
    if path.startswith(_RESPONSES):
        # client libraries read "error"; the other fields are part of the event type
        own = {"type": "error", "code": kind.spec.code, "message": message, "param": None}
        return _named(msgspec.json.encode({**own, **read_json(body)}))
    return b"data: " + body + b"\n\n" + DONE_EVENT


def body_event(body: bytes, path: str) -> bytes:
    """Return a complete body, usually an error, as one event. For streams whose head is sent already."""
    data = body.strip().replace(b"\n", b"\ndata: ")
    if path.startswith((_MESSAGES, _RESPONSES)):
        return _named(data)
    return b"data: " + data + b"\n\n" + DONE_EVENT


def is_error(body: bytes) -> bool:
    try:
        return isinstance(read_json(body, dict[str, Any]).get("error"), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _named(data: bytes) -> bytes:
    return b"event: error\ndata: " + data + b"\n\n"


def anthropic_type(kind: ErrorKind) -> str:
    default = "invalid_request_error" if kind.spec.fault is Fault.CLIENT else "api_error"
    return _ANTHROPIC_TYPES.get(kind.spec.status, default)


def _anthropic(kind: ErrorKind, message: str) -> dict[str, Any]:
    error = {"type": anthropic_type(kind), "message": message, "code": kind.spec.code}
    return {"type": "error", "error": error}
