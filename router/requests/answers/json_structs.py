"""The JSON objects that the data plane reads, as msgspec structs.

This module is not compiled, because msgspec reads annotations at run time and compiled modules do not keep them
(`docs/how-to/compile-it.md`).
"""

from __future__ import annotations

from typing import Any

import msgspec


class EventError(msgspec.Struct):
    error: Any = None
    object: Any = None
    code: Any = None
    message: Any = None


class Mistake(msgspec.Struct):
    """The inner object of an error body. `param` names the parameter at fault."""

    param: Any = None
    message: Any = None


class MistakeBody(msgspec.Struct):
    """The error body of OpenAI's and Anthropic's APIs."""

    error: Mistake | None = None


class EventUsage(msgspec.Struct):
    """The fields that mark an event as a usage frame, as they came: a worker may put anything there."""

    choices: msgspec.Raw = msgspec.Raw()
    usage: msgspec.Raw = msgspec.Raw()


class TokenDetails(msgspec.Struct):
    cached_tokens: int | None = None


class ReportedUsage(msgspec.Struct):
    """The names of the OpenAI, Responses and Messages APIs for the same three numbers.

    In the Messages API, `input_tokens` excludes tokens that were read from or written to the cache.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: TokenDetails | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class EndedMessage(msgspec.Struct):
    """The fields of a Messages answer that show how it ended."""

    type: Any = None
    stop_reason: Any = None


class EndedUsage(msgspec.Struct):
    """The generated tokens that a Responses answer reports."""

    output_tokens: Any = None


class EndedResponse(msgspec.Struct):
    """The fields of a Responses answer that show how it ended."""

    object: Any = None
    status: Any = None
    usage: EndedUsage | None = None


class ResponseEnd(msgspec.Struct):
    response: EndedResponse | None = None
