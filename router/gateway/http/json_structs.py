"""What is read of JSON on the data plane, as msgspec decodes it.

These classes are kept apart because msgspec reads their annotations, which a compiled module does not keep
(`docs/how-to/compile-it.md`).
"""

from __future__ import annotations

from typing import Any

import msgspec


class EventError(msgspec.Struct):
    """Where an event says that it is an error."""

    error: Any = None
    object: Any = None
    code: Any = None
    message: Any = None


class Mistake(msgspec.Struct):
    """Part of an error body: which of the request's parameters the error is about."""

    param: Any = None


class MistakeBody(msgspec.Struct):
    """OpenAI's error body."""

    error: Mistake | None = None


class EventUsage(msgspec.Struct):
    """Where an event is a usage frame."""

    choices: Any = None
    usage: Any = None


class TokenDetails(msgspec.Struct):
    """Part of a usage object."""

    cached_tokens: int | None = None


class ReportedUsage(msgspec.Struct):
    """OpenAI's, the Responses API's and the Messages API's names for the same three numbers.

    The last one's `input_tokens` leaves out what was read from the cache and what was written to it.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: TokenDetails | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
