"""Reads the few fields of a request body that the router uses, in one decode.

Nothing that vLLM would take is refused here: fields it converts (``"stream": "true"``, ``"max_tokens": 5.0``) are
converted the same way, JSON that only Python's own parser takes (NaN, lone surrogates, UTF-16) is read with that, and
what is merely missing or odd is left for the worker to judge.
"""

from __future__ import annotations

import json
import re
from types import NoneType

import msgspec
from xxhash import xxh3_128_intdigest

from router.errors import ErrorKind, RequestError
from router.tokens.fields import BodyFields

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
MESSAGES_PATH = "/v1/messages"
RESPONSES_PATH = "/v1/responses"
PROMPT_PATHS = frozenset({CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH})
"""Paths whose bodies are understood."""

_TRUE = frozenset({"true", "t", "yes", "y", "on", "1"})
_FALSE = frozenset({"false", "f", "no", "n", "off", "0"})


class ParsedBody:
    """What the gateway reads of a body, and in `fields` the rest for `router.tokens.identity`.

    `max_tokens` is the output limit under any of its names. `reads_cache` is False where vLLM computes the whole
    prompt for its log-probabilities; `answers` is `n`. `digest` stands for the body's `size_bytes` bytes. A field that
    vLLM does not read on this path counts as absent.
    `pending` is `Identity`'s own: what `identify_now` had worked out when it found that the rest takes too long for
    the event loop.
    """

    __slots__ = (
        "answers", "cache_salt", "digest", "fields", "include_usage", "max_tokens", "model", "pending",
        "previous_response_id", "priority", "reads_cache", "session_id", "size_bytes", "stream",
    )  # fmt: skip

    def __init__(self, path: str, fields: BodyFields, body: bytes, *, stream: bool) -> None:
        self.fields = fields
        self.digest = xxh3_128_intdigest(body)
        self.size_bytes = len(body)
        self.model: str | None = fields.model
        self.stream = stream
        options = fields.stream_options
        self.include_usage = isinstance(options, dict) and as_bool(options.get("include_usage")) is True
        self.max_tokens = _output_limit(path, fields)
        anthropic, openai = path == MESSAGES_PATH, path in (CHAT_PATH, COMPLETIONS_PATH)
        self.session_id = fields.session_id if isinstance(fields.session_id, str) and not anthropic else None
        self.priority = 0 if anthropic else as_int(fields.priority) or 0
        self.cache_salt = fields.cache_salt if isinstance(fields.cache_salt, str) else None
        previous = fields.previous_response_id if path == RESPONSES_PATH else None
        self.previous_response_id = previous if isinstance(previous, str) else None
        self.pending: object = None
        self.answers = as_int(fields.n) or 1 if openai else 1
        self.reads_cache = not openai or (fields.prompt_logprobs is None and not _echoes_logprobs(fields))


def _output_limit(path: str, fields: BodyFields) -> int | None:
    if path == RESPONSES_PATH:
        return as_int(fields.max_output_tokens)
    limit = as_int(fields.max_completion_tokens) if path == CHAT_PATH else None
    return limit if limit is not None else as_int(fields.max_tokens)


def _echoes_logprobs(fields: BodyFields) -> bool:
    """An echoed prompt comes with its log-probabilities: in a chat always, in a completion where they are asked for."""
    return as_bool(fields.echo) is True and (fields.messages is not None or fields.logprobs is not None)


_decode = msgspec.json.Decoder(BodyFields).decode


def parse(path: str, body: bytes) -> ParsedBody:
    """Read the body of a request to `path`.

    Raises:
        RequestError: INVALID_JSON, or INVALID_BODY for a field whose type no vLLM takes.
    """
    routed = path in PROMPT_PATHS
    fields = BodyFields() if not body and not routed else _fields(body, routed)
    if fields.model is not None and not isinstance(fields.model, str):
        if routed:
            raise _wrong("model", "a string")
        fields.model = None
    stream = as_bool(fields.stream) if fields.stream is not None else False
    if routed:
        if stream is None:
            raise _wrong("stream", "true or false")
        _check_prompt(path, fields)
    return ParsedBody(path, fields, body, stream=bool(stream))


def as_bool(value: object) -> bool | None:
    """A flag as pydantic reads one; None when it would not."""
    if isinstance(value, str):
        text = value.lower()
        return True if text in _TRUE else False if text in _FALSE else None
    return bool(value) if isinstance(value, (bool, int, float)) and value in (0, 1) else None


def as_int(value: object) -> int | None:
    """A whole number as pydantic reads one; None when it would not."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"\s*[+-]?\d{1,18}\s*", value) else None
    return value if isinstance(value, int) else None


def _fields(body: bytes, routed: bool) -> BodyFields:
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _fields_by_python(body, routed)


def _fields_by_python(body: bytes, routed: bool) -> BodyFields:
    """The same from Python's parser, which is vLLM's: slower, and more lenient."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(ErrorKind.INVALID_JSON, f"The request body is not valid JSON: {error}.") from None
    if not isinstance(found, dict):
        if routed:
            raise RequestError(ErrorKind.INVALID_BODY, "The request body must be a JSON object.")
        return BodyFields()
    return BodyFields(**{name: found[name] for name in BodyFields.__struct_fields__ if name in found})


def _check_prompt(path: str, fields: BodyFields) -> None:
    if path in (CHAT_PATH, MESSAGES_PATH) and not isinstance(fields.messages, (list, NoneType)):
        raise _wrong("messages", "a list of messages")
    if path == RESPONSES_PATH and not isinstance(fields.input, (str, list, NoneType)):
        raise _wrong("input", "a string or a list of input items")
    if path == COMPLETIONS_PATH and not isinstance(fields.prompt, (str, list, NoneType)):
        raise _wrong("prompt", "a string, a list of strings, or token ids")


def _wrong(name: str, wanted: str) -> RequestError:
    return RequestError(ErrorKind.INVALID_BODY, f"`{name}` must be {wanted}.", param=name)
