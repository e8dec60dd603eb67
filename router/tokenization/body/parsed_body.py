"""One request's body: what the gateway reads of it, from its arrival to the identity of its prompt.

Fields that vLLM converts (``"stream": "true"``, ``"max_tokens": 5.0``) are converted in the same way. Missing and odd
fields are left to the worker to judge.
"""

from __future__ import annotations

import re
from enum import IntEnum
from types import NoneType
from typing import Final

from router.errors import ErrorKind, RequestError
from router.tokenization.body.decoding import all_fields
from router.tokenization.body.fields import PROMPT_FIELDS, BodyFields
from router.tokenization.body.json_spans import JsonSpans, invalid_json, transfer_field
from router.tokenization.body.known_bodies import KnownStart
from router.tokenization.body.large_json import BodySurvey
from router.tokenization.body.multipart import Form
from router.tokenization.threads import TokenizerTask

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
MESSAGES_PATH = "/v1/messages"
RESPONSES_PATH = "/v1/responses"
PROMPT_PATHS = frozenset({CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH})
"""Paths whose bodies are understood."""

_TRUE = frozenset({"true", "t", "yes", "y", "on", "1"})
_FALSE = frozenset({"false", "f", "no", "n", "off", "0"})
_MESSAGES = "messages", (list, NoneType), "a list of messages"
_PROMPTS: dict[str, tuple[str, tuple[type, ...], str]] = {
    CHAT_PATH: _MESSAGES,
    MESSAGES_PATH: _MESSAGES,
    RESPONSES_PATH: ("input", (str, list, NoneType), "a string or a list of input items"),
    COMPLETIONS_PATH: ("prompt", (str, list, NoneType), "a string, a list of strings, or token ids"),
}
"""The prompt's field, its types, and the types in words."""
_TYPES: dict[bytes, type] = {b"[": list, b'"': str, b"n": NoneType}


class DecodedPart(IntEnum):
    """How much of a body `ParsedBody.fields` has."""

    SMALL = 0
    """All fields but the prompt's (`PROMPT_FIELDS`), which are None."""
    NEW = 1
    """All fields, but of the messages only the first and those after the known start."""
    WHOLE = 2


_SMALL: Final = DecodedPart.SMALL
_NEW: Final = DecodedPart.NEW
_WHOLE: Final = DecodedPart.WHOLE


class ParsedBody:
    """What the gateway has read of a body; `fields` has what `router.tokenization.prompt_identifier` also needs.

    `max_tokens` is the output limit under any of its names. `reads_cache` is False if vLLM computes the whole prompt
    for its log-probabilities; `answers` is `n`. `digest` stands for the body's `size_bytes` bytes. A field that vLLM
    does not read on this path counts as absent. `has_prompt` and `has_tools`: these fields are not empty.
    `transfer_field` names the field that tells a KV or encoder connector what to transfer, None if there is none.

    `body` is in UTF-8. It is the client's unless `converted`, which is True for UTF-16 and UTF-32. `release` drops it.
    `survey` describes a body that was read in steps. `known` is the start that the body shares with an earlier one;
    with `searched`, one was looked for.

    A body that is no JSON, or that nobody reads, has no `fields` set and is not `is_json`; its model may be in a `form`
    or in the query. `task` is the work of a tokenizer's thread on the prompt, once there is any.
    """

    __slots__ = (
        "answers", "body", "cache_salt", "converted", "decoded_part", "digest", "fields", "form", "has_prompt",
        "has_tools", "is_json", "known", "max_tokens", "model", "previous_response_id", "priority", "reads_cache",
        "searched", "session_id", "size_bytes", "stream", "survey", "task", "transfer_field",
    )  # fmt: skip

    def __init__(
        self,
        path: str,
        fields: BodyFields,
        body: bytes,
        digest: int,
        spans: JsonSpans | None = None,
        survey: BodySurvey | None = None,
        known: KnownStart | None = None,
        *,
        searched: bool = False,
    ) -> None:
        """Check and convert `fields`. With `spans`, the fields of the prompt are not decoded.

        Raises:
            RequestError: INVALID_BODY for a field whose type no vLLM accepts.
        """
        _check(path, fields, spans)
        self.fields = fields
        self.body: bytes | None = body
        self.is_json = True
        self.converted = False
        self.form: Form | None = None
        self.known = known
        self.searched = searched
        self.survey = survey
        self.task: TokenizerTask | None = None
        self.digest = digest
        self.size_bytes = len(body)
        self.model: str | None = fields.model or None  # vLLM takes an empty name as none
        self.stream = fields.stream is not None and as_bool(fields.stream) is True
        self.max_tokens = _output_limit(path, fields)
        anthropic, openai = path == MESSAGES_PATH, path in (CHAT_PATH, COMPLETIONS_PATH)
        self.session_id = fields.session_id if isinstance(fields.session_id, str) and not anthropic else None
        self.priority = 0 if anthropic else as_int(fields.priority) or 0
        self.cache_salt = fields.cache_salt if isinstance(fields.cache_salt, str) else None
        previous = fields.previous_response_id if path == RESPONSES_PATH else None
        self.previous_response_id = previous if isinstance(previous, str) else None
        self.answers = as_int(fields.n) or 1 if openai else 1
        self.reads_cache = not openai or (fields.prompt_logprobs is None and not _echoes_logprobs(path, fields))
        self.has_prompt = _has_prompt(path, fields, spans)
        if spans is None:
            self.decoded_part = _WHOLE if known is None else _NEW
            self.has_tools = bool(fields.tools)
            self.transfer_field = transfer_field(fields)
        else:
            self.decoded_part = _SMALL
            self.has_tools = spans.filled("tools")
            self.transfer_field = spans.transfer_field(look_inside=survey is None)

    @property
    def whole(self) -> bool:
        return self.decoded_part is _WHOLE

    @property
    def shortened(self) -> bool:
        return self.decoded_part is _NEW

    def decoded(self) -> BodyFields:
        """Return all fields; decode the body again unless they are present. Time and memory depend on the content.

        Raises:
            RequestError: the body is not valid JSON, or has been released.
            CostlyBody: it has too many floats.
        """
        if self.decoded_part is _WHOLE:
            return self.fields
        if self.body is None:
            raise RequestError(ErrorKind.INTERNAL, "the request body is gone")
        try:
            return all_fields(self.body)
        except (ValueError, RecursionError) as error:
            raise invalid_json(error) from None

    def read_whole(self) -> None:
        self.fields, self.decoded_part = self.decoded(), _WHOLE

    def drop_prompt(self) -> None:
        """Drop the decoded prompt. It is decoded again if it is needed later."""
        self.known, self.searched = None, False
        if self.decoded_part is not _SMALL:
            self.decoded_part = _SMALL
            for name in PROMPT_FIELDS:
                setattr(self.fields, name, None)

    def release(self) -> None:
        """Drop the prompt's fields and the body after the prompt is identified; the rewrites' fields stay.

        A new object for the remaining fields takes a tenth of the time of clearing all other fields.
        """
        self.known = None
        if self.decoded_part is not _SMALL:
            self.decoded_part = _SMALL
            fields = self.fields
            self.fields = BodyFields(stream_options=fields.stream_options, vllm_xargs=fields.vllm_xargs)
        self.body = None
        self.task = None


def unread_body(model: str | None = None, form: Form | None = None) -> ParsedBody:
    """Return the reading of a body that is no JSON, or whose fields nobody reads."""
    unread = ParsedBody("", BodyFields(model=model), b"", 0)
    unread.is_json, unread.form = False, form
    return unread


def _check(path: str, fields: BodyFields, spans: JsonSpans | None) -> None:
    prompt = _PROMPTS.get(path)
    if fields.model is not None and not isinstance(fields.model, str):
        if prompt is not None:
            raise _wrong("model", "a string")
        fields.model = None
    if prompt is None:
        return
    if fields.stream is not None and as_bool(fields.stream) is None:
        raise _wrong("stream", "true or false")
    name, types, wanted = prompt
    if spans is None:
        fits = isinstance(getattr(fields, name), types)
    else:  # the first byte of a field shows its type
        opening = spans.opening(name)
        fits = not opening or _TYPES.get(opening) in types
    if not fits:
        raise _wrong(name, wanted)


def _wrong(name: str, wanted: str) -> RequestError:
    return RequestError(ErrorKind.INVALID_BODY, f"`{name}` must be {wanted}.", param=name)


def _has_prompt(path: str, fields: BodyFields, spans: JsonSpans | None) -> bool:
    prompt = _PROMPTS.get(path)
    if prompt is None:
        return False
    name = prompt[0]
    if spans is not None:
        text, filled = spans.opening(name) == b'"', spans.filled(name)
    else:
        value = getattr(fields, name)
        text, filled = isinstance(value, str), bool(value)
    return filled or (text and path == RESPONSES_PATH)  # an empty text is a turn too: the template frames it


def _output_limit(path: str, fields: BodyFields) -> int | None:
    if path == RESPONSES_PATH:
        return as_int(fields.max_output_tokens)
    limit = as_int(fields.max_completion_tokens) if path == CHAT_PATH else None
    return limit if limit is not None else as_int(fields.max_tokens)


def _echoes_logprobs(path: str, fields: BodyFields) -> bool:
    """Return whether an echoed prompt has log-probabilities: always in a chat, on request in a completion."""
    return as_bool(fields.echo) is True and (path == CHAT_PATH or fields.logprobs is not None)


def as_bool(value: object) -> bool | None:
    """Return a flag as pydantic reads it; None if pydantic refuses it."""
    if value is None:
        return None  # the usual case
    if isinstance(value, str):
        text = value.lower()
        return True if text in _TRUE else False if text in _FALSE else None
    return bool(value) if isinstance(value, (bool, int, float)) and value in (0, 1) else None


def as_int(value: object) -> int | None:
    """Return a whole number as pydantic reads it; None if pydantic refuses it."""
    if value is None:
        return None  # the usual case
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"\s*[+-]?\d{1,18}\s*", value) else None
    return value if isinstance(value, int) else None
