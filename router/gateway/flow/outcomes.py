"""What happens to one attempt, and its outcomes: the input and the output of `attempt.transitions`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import msgspec

from backends.foreign_json import json_decoder
from router.placement.request import FailurePoint
from router.requests.answers.json_structs import MistakeBody

_MISTAKE = json_decoder(MistakeBody)
_SHUTDOWN_BYTES = 1_024
_SHUTDOWN_MESSAGES = (
    "cannot schedule new futures after shutdown",
    "cannot schedule new futures after interpreter shutdown",
)
"""Python's message where a thread pool was shut down, seen in vLLM 0.33.0."""


class AttemptEvent(IntEnum):
    """What happens to an attempt: to its connection, in its worker's answer, or by the request's will."""

    INCOMPLETE = 0
    """Nothing that a state waits for."""
    SEND = 1
    """The request is written to a connection."""
    UNREACHABLE = 2
    NO_DIAL = 3
    """The gateway itself cannot open a connection."""
    UNREACHABLE_AGAIN = 4
    """An idle connection broke under the request, and then the worker could not be reached."""
    REFUSED = 5
    """Status 503, in the head or as the first event."""
    DOUBTED = 6
    """A client error that the gateway's own additions to the request may have caused."""
    SERVER_ERROR = 7
    """The head of a server error."""
    ERROR_CUT = 8
    """A server error whose body is late, too long or has no defined end."""
    ERROR_EVENT = 9
    """The first event of the stream is an error about the worker."""
    MISSING = 10
    """The head of a 404 that may be about the model."""
    AGAIN = 11
    """The worker refuses what the gateway has added, and gets the request once more without it."""
    SWITCH = 12
    """The worker agrees to the protocol switch."""
    OPEN = 13
    """The first real event, or the first byte of another body."""
    PREAMBLE = 14
    """Events without content, which come just before the first content."""
    PART = 15
    """Part of a body that is no stream. A whole one can be judged."""
    END = 16
    """The answer is complete."""
    STOPPING = 17
    """A complete server error says that the worker shuts down."""
    NO_MODEL = 18
    """A complete 404 says that the worker does not serve the model."""
    ABORTED = 19
    """The worker gave the request up, and ends the answer as if it were whole."""
    INVALID = 20
    """Nothing usable will follow, though the worker works: its answer is no valid HTTP, too long or without an end."""
    LOST = 21
    """The connection broke."""
    STALE = 22
    """A pooled connection broke before the answer: the worker had closed it while it was idle."""
    STALE_LATE = 23
    """The same, but so late that the worker may have had the request."""
    GIVEN_UP = 24
    LATE = 25
    """It is given up, because nothing came in time."""
    RELEASED = 26


class Outcome(IntEnum):
    """What an attempt tells its request."""

    MOVED = 0
    """`Attempt.sent` or `Attempt.begins_early` changed, and so did the deadline."""
    SUSPECTED = 1
    """The request may have crashed the worker, which answered with an error. Another outcome follows."""
    BROKEN = 2
    """The request may have crashed the worker, whose connection broke. Another outcome follows."""
    OPENED = 3
    """The first real event, or the first byte of another body, arrived."""
    ANSWERED = 4
    """The answer is complete."""
    NOT_FOUND = 5
    """The answer is complete: a 404 that says that the worker does not serve the model."""
    ERRED = 6
    """The answer is complete: a server error."""
    FAILED = 7
    """See `Attempt.failure`."""
    SWITCHED = 8
    """The worker agreed to the protocol switch."""
    CRASHED = 9
    """The gateway has a defect; posted while the exception is handled."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed: its `cause`, for the failover its `point`, and for people its `reason`."""

    point: FailurePoint
    reason: str
    retry_after_s: float | None = None
    cause: AttemptEvent = AttemptEvent.LOST

    @property
    def broke_http(self) -> bool:
        return self.cause is AttemptEvent.INVALID

    @property
    def given_up(self) -> bool:
        """Whether the gateway broke the attempt off."""
        return self.cause is AttemptEvent.GIVEN_UP or self.cause is AttemptEvent.LATE


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
