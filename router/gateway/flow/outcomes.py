"""The outcomes and failures of one attempt."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import msgspec

from backends.foreign_json import json_decoder
from router.gateway.http.json_structs import MistakeBody
from router.placement.request import FailurePoint

_MISTAKE = json_decoder(MistakeBody)
_SHUTDOWN_BYTES = 1_024
_SHUTDOWN_MESSAGES = (
    "cannot schedule new futures after shutdown",
    "cannot schedule new futures after interpreter shutdown",
)
"""Python's message where a thread pool was shut down, seen in vLLM 0.33.0."""


class Outcome(IntEnum):
    """A report of an attempt to its request."""

    MOVED = 0
    """`Attempt.sent` or `Attempt.begins_early` changed, and so did the deadline."""
    SUSPECTED = 1
    """The request may have crashed the worker; see `Attempt.lost`. Another outcome follows."""
    OPENED = 2
    """The first real event, or the first byte of another body, arrived."""
    ANSWERED = 3
    """The answer is complete."""
    NOT_FOUND = 4
    """The answer is complete: a 404 that says that the worker does not serve the model."""
    ERRED = 5
    """The answer is complete: a server error."""
    FAILED = 6
    """See `Attempt.failure`."""
    SWITCHED = 7
    """The worker agreed to the protocol switch."""
    CRASHED = 8
    """The gateway has a defect; reported while the exception is handled."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed. `broke_http`: the worker's answer was not valid HTTP."""

    point: FailurePoint
    reason: str
    retry_after_s: float | None = None
    broke_http: bool = False


def denies_model(body: bytes) -> bool:
    """Return whether `body` is an OpenAI error about the parameter `model`."""
    try:
        error = _MISTAKE.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return error is not None and error.param == "model"


def shuts_down(body: bytes) -> bool:
    """Return whether `body` is vLLM's error for a request that came after its shutdown began.

    vLLM closes the thread pool of its tokenizer first. Then `/health` still answers 200, and running requests go on.
    The message must be equal: a text that only contains it may come from a prompt.
    """
    if len(body) > _SHUTDOWN_BYTES:
        return False
    try:
        error = _MISTAKE.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return error is not None and error.message in _SHUTDOWN_MESSAGES


def seconds(value: bytes | None) -> float | None:
    """Return Retry-After in seconds; None if it is absent, a date or invalid."""
    return float(value) if value is not None and len(value) <= 6 and value.isdigit() else None
