"""Read the few fields of a request body that the router uses.

A body that vLLM accepts is never refused here, whatever its size. Fields that vLLM converts (``"stream": "true"``,
``"max_tokens": 5.0``) are converted in the same way. Missing and odd fields are left to the worker to judge.

A body of at most `WHOLE_BYTES` is decoded at once. Of a larger body, or one with many elements, only the small fields
are decoded: `json_spans` finds their places. `ParsedBody.decoded` decodes the prompt, off the event loop and within
bounds: objects take up to forty times the bytes of their JSON.

A very large body is read step by step (`large_json`). So is JSON that only Python's parser accepts (NaN, lone
surrogates), unless it is small: that parser reads it. `encodings` converts UTF-16 and UTF-32.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Mapping
from types import NoneType
from typing import TypeAlias

from xxhash import xxh3_128_intdigest

from router.errors import ErrorKind, RequestError
from router.tokenization.body.decoding import (
    INLINE_FLOATS,
    CostlyBody,
    FloatBudget,
    all_fields,
    inline_fields,
    python_fields,
)
from router.tokenization.body.encodings import finished, utf8_steps
from router.tokenization.body.fields import PROMPT_FIELDS, BodyFields
from router.tokenization.body.json_spans import (
    FIELDS,
    REUSED,
    TRANSFER_FIELDS,
    JsonSpans,
    find_spans,
    invalid_json,
    transfer_field,
)
from router.tokenization.body.known_bodies import BodySearch, KnownBodies, new_messages
from router.tokenization.body.large_json import BodySurvey, LargeObjectScan

Places: TypeAlias = Mapping[str, tuple[int, int]]
"""Start and end of values by name."""

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
MESSAGES_PATH = "/v1/messages"
RESPONSES_PATH = "/v1/responses"
PROMPT_PATHS = frozenset({CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH})
"""Paths whose bodies are understood."""

WHOLE_BYTES = 262_144
"""Bodies up to this size are decoded whole, unless they have many elements. It takes at most 5 ms and 10 MB."""

_TRUE = frozenset({"true", "t", "yes", "y", "on", "1"})
_FALSE = frozenset({"false", "f", "no", "n", "off", "0"})
_OTHER_JSON = re.compile(rb'[ \t\r\n]{0,64}[\["0-9tfn-]')
"""The beginning of JSON that is not an object."""
_EXTRA_ARGS = ("extra_args",)
_PROMPT_OF = {CHAT_PATH: "messages", MESSAGES_PATH: "messages", RESPONSES_PATH: "input", COMPLETIONS_PATH: "prompt"}
MIN_BODY_BYTES = 8_192
"""A chat of a known conversation is continued from this size on. The whole of a shorter one takes as long."""
PYTHON_BYTES = 65_536
"""Bodies up to this size that msgspec refuses are read by Python's parser. Any content takes at most 5 ms."""
READ_AT_ONCE_BYTES = 1_048_576
"""Bodies up to this size are read at once, in at most 5 ms; larger ones step by step."""


class ParsedBody:
    """The fields of a body that the gateway reads; `fields` has the rest for `router.tokenization.prompt_identifier`.

    `max_tokens` is the output limit under any of its names. `reads_cache` is False if vLLM computes the whole prompt
    for its log-probabilities; `answers` is `n`. `digest` stands for the body's `size_bytes` bytes. A field that vLLM
    does not read on this path counts as absent. `has_prompt` and `has_tools`: these fields are not empty.
    `transfer_field` names the field that tells a KV or encoder connector what to transfer, None if there is none.

    With `whole`, `fields` contains the prompt's fields too (`PROMPT_FIELDS`); otherwise they are None and `decoded`
    reads them. `release` drops these fields and the body. `survey` describes a body that was read step by step.

    `body` is in UTF-8. It is the client's unless `converted`, which is True for UTF-16 and UTF-32.

    `search` is the search for a known start of the body, None if there was none. With `shortened`, `fields` contains
    all fields, but of the messages only the first and those after the known start; `read_whole` reads the others.

    `pending` belongs to `PromptIdentifier`: the state of `identify_now` when the rest takes too long for the event
    loop.
    """

    __slots__ = (
        "answers", "body", "cache_salt", "converted", "digest", "fields", "has_prompt", "has_tools", "include_usage",
        "max_tokens", "model", "pending", "previous_response_id", "priority", "reads_cache", "search", "session_id",
        "shortened", "size_bytes", "stream", "survey", "transfer_field", "whole",
    )  # fmt: skip

    def __init__(
        self,
        path: str,
        fields: BodyFields,
        body: bytes,
        spans: JsonSpans | None,
        survey: BodySurvey | None,
        search: BodySearch | None = None,
    ) -> None:
        self.fields = fields
        self.body: bytes | None = body
        self.converted = False
        self.search = search
        self.shortened = search is not None and search.known is not None
        self.whole = spans is None and not self.shortened
        self.survey = survey
        if search is not None:
            self.digest = search.digest
        else:
            self.digest = survey.digest if survey is not None else xxh3_128_intdigest(body)
        self.size_bytes = len(body)
        self.model: str | None = fields.model or None  # vLLM takes an empty name as none
        self.stream = fields.stream is not None and as_bool(fields.stream) is True
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
        self.reads_cache = not openai or (fields.prompt_logprobs is None and not _echoes_logprobs(path, fields))
        self.has_prompt = _has_prompt(path, fields, spans)
        if spans is None:
            self.has_tools = bool(fields.tools)
            self.transfer_field = transfer_field(fields)
        else:
            self.has_tools = spans.filled("tools")
            self.transfer_field = spans.transfer_field(look_inside=survey is None)

    def decoded(self) -> BodyFields:
        """Return all fields; decode the body again unless they are present. Time and memory depend on the content.

        Raises:
            RequestError: the body is not valid JSON, or has been released.
            CostlyBody: it has too many floats.
        """
        if self.whole:
            return self.fields
        if self.body is None:
            raise RequestError(ErrorKind.INTERNAL, "the request body is gone")
        try:
            return all_fields(self.body)
        except (ValueError, RecursionError) as error:
            raise invalid_json(error) from None

    def read_whole(self) -> None:
        self.fields, self.whole, self.shortened = self.decoded(), True, False

    def drop_prompt(self) -> None:
        """Drop the decoded prompt. It is decoded again if it is needed later."""
        self.search = None
        if self.whole or self.shortened:
            self.whole = self.shortened = False
            for name in PROMPT_FIELDS:
                setattr(self.fields, name, None)

    def release(self) -> None:
        """Drop the prompt's fields and the body after the prompt is identified; the rewrites' fields stay.

        A new object for the remaining fields takes a tenth of the time of clearing all other fields.
        """
        self.search = None
        if self.whole or self.shortened:
            self.whole = self.shortened = False
            fields = self.fields
            self.fields = BodyFields(stream_options=fields.stream_options, vllm_xargs=fields.vllm_xargs)
        self.body = None
        self.pending = None


def _has_prompt(path: str, fields: BodyFields, spans: JsonSpans | None) -> bool:
    name = _PROMPT_OF.get(path)
    if name is None:
        return False
    value = getattr(fields, name) if spans is None else None
    if path == RESPONSES_PATH and (isinstance(value, str) if spans is None else spans.opening(name) == b'"'):
        return True  # an empty text is a turn too: the template puts its tokens around it
    return bool(value) if spans is None else spans.filled(name)


def _output_limit(path: str, fields: BodyFields) -> int | None:
    if path == RESPONSES_PATH:
        return as_int(fields.max_output_tokens)
    limit = as_int(fields.max_completion_tokens) if path == CHAT_PATH else None
    return limit if limit is not None else as_int(fields.max_tokens)


def _echoes_logprobs(path: str, fields: BodyFields) -> bool:
    """Return whether an echoed prompt has log-probabilities: always in a chat, on request in a completion."""
    return as_bool(fields.echo) is True and (path == CHAT_PATH or fields.logprobs is not None)


class UnreadBody(Exception):
    """The body takes too long to be read at once: `parse_steps` reads it."""


def parse(path: str, body: bytes, known: KnownBodies | None = None) -> ParsedBody:
    """Read the body of a request to `path` in one call, even a very large one.

    Raises:
        RequestError: as `parse_at_once` and `parse_steps`.
    """
    try:
        return parse_at_once(path, body, known)
    except UnreadBody:
        return finished(parse_steps(path, body))


def parse_at_once(path: str, body: bytes, known: KnownBodies | None = None) -> ParsedBody:
    """Read the body of a request to `path` in a few milliseconds.

    A chat whose start is in `known` is read without the messages there.

    Raises:
        UnreadBody: it takes longer.
        RequestError: INVALID_JSON; INVALID_BODY for a field whose type no vLLM accepts.
    """
    if len(body) > READ_AT_ONCE_BYTES:
        raise UnreadBody
    if not body and path not in PROMPT_PATHS:
        return _checked(path, BodyFields(), body, None, None)
    try:
        if path not in PROMPT_PATHS or len(body) > WHOLE_BYTES:
            return _spanned(path, body)
        if known is not None and path == CHAT_PATH and len(body) >= MIN_BODY_BYTES:
            return _chat(body, known)
        return _checked(path, inline_fields(body), body, None, None)
    except CostlyBody:
        return _spanned_or_python(path, body)
    except (ValueError, RecursionError):
        return _by_python(path, body)


def _chat(body: bytes, known: KnownBodies) -> ParsedBody:
    search = known.search(body)
    fields = _shortened(search)
    if fields is None:
        search.known = None
        fields = inline_fields(body)
    return _checked(CHAT_PATH, fields, body, None, None, search)


def _shortened(search: BodySearch) -> BodyFields | None:
    """Return the fields of a body with a known start; None if it has to be read as a whole.

    The bytes of the start were part of a body that was read, so only the others can have mistakes.
    """
    if search.known is None:
        return None
    try:
        fields = inline_fields(search.known.shortened)
    except (ValueError, RecursionError):
        return None
    return fields if new_messages(fields) is not None else None


def _spanned(path: str, body: bytes) -> ParsedBody:
    """Read the small fields of a body that is not decoded whole."""
    spans = find_spans(body)
    return _checked(path, spans.small_fields(), body, spans, None)


def _spanned_or_python(path: str, body: bytes) -> ParsedBody:
    try:
        return _spanned(path, body)
    except (ValueError, RecursionError):
        return _by_python(path, body)


def _by_python(path: str, body: bytes) -> ParsedBody:
    """Read a body that msgspec refuses. One that is nested too deeply for Python's parser here is read in steps.

    Raises:
        UnreadBody: it is large.
        RequestError: INVALID_JSON; INVALID_BODY if a body that is placed by prefix is no object.
    """
    if len(body) > PYTHON_BYTES:
        raise UnreadBody
    try:
        text = finished(utf8_steps(body))
        fields = python_fields(text, FloatBudget(INLINE_FLOATS))
    except (CostlyBody, RecursionError):
        return finished(parse_steps(path, body))
    except ValueError as error:
        raise invalid_json(error) from None
    except RequestError:
        if path in PROMPT_PATHS:
            raise
        fields = BodyFields()
    parsed = _checked(path, fields, text, None, None)
    parsed.converted = _is_other(body, text)
    return parsed


def _is_other(body: bytes, text: bytes) -> bool:
    return text is not body and not body.endswith(text)


def parse_steps(path: str, body: bytes) -> Generator[None, None, ParsedBody]:
    """Read a body of a request to `path` in steps of at most a few milliseconds.

    Mistakes inside of a member are left to the worker: no parser accepts a part of a body.

    Raises:
        RequestError: INVALID_JSON; INVALID_BODY for a field whose type no vLLM accepts, and for thousands of members.
    """
    try:
        text = yield from utf8_steps(body)
    except ValueError as error:
        raise invalid_json(error) from None
    survey = BodySurvey()
    yield from survey.steps(text)
    skim = LargeObjectScan(text, FIELDS)
    try:
        yield from skim.steps()
    except RequestError:
        if path in PROMPT_PATHS or _OTHER_JSON.match(text) is None:
            raise
        skim.spans.clear()
    view = memoryview(text)
    spans = JsonSpans({name: view[start:end] for name, (start, end) in skim.spans.items()})
    parsed = _checked(path, spans.small_fields(), text, spans, survey)
    if parsed.transfer_field is None:
        parsed.transfer_field = yield from _transfer_field_steps(text, skim.spans)
    parsed.converted = _is_other(body, text)
    return parsed


def _transfer_field_steps(body: bytes, places: Places) -> Generator[None, None, str | None]:
    """Find `json_spans.transfer_field` within the objects at `places`."""
    params = yield from _skimmed(body, places.get("kv_transfer_params"), REUSED)
    if params.others:
        return "kv_transfer_params"
    arguments = yield from _skimmed(body, places.get("vllm_xargs"), TRANSFER_FIELDS)
    if name := _given_in(body, arguments):
        return f"vllm_xargs.{name}"
    sampling = yield from _skimmed(body, places.get("sampling_params"), _EXTRA_ARGS)
    extra = yield from _skimmed(body, sampling.spans.get("extra_args"), TRANSFER_FIELDS)
    name = _given_in(body, extra)
    return name and f"sampling_params.extra_args.{name}"


def _skimmed(
    body: bytes, place: tuple[int, int] | None, names: Collection[str]
) -> Generator[None, None, LargeObjectScan]:
    """Return the members of the object at `place`; none if there is no object."""
    skim = LargeObjectScan(body, names)
    if place is not None and body[place[0] : place[0] + 1] == b"{":
        yield from skim.steps(place[0])
    return skim


def _given_in(body: bytes, skim: LargeObjectScan) -> str | None:
    return next((name for name, (start, _) in skim.spans.items() if body[start : start + 1] != b"n"), None)


def _checked(
    path: str,
    fields: BodyFields,
    body: bytes,
    spans: JsonSpans | None,
    survey: BodySurvey | None,
    search: BodySearch | None = None,
) -> ParsedBody:
    routed = path in PROMPT_PATHS
    if fields.model is not None and not isinstance(fields.model, str):
        if routed:
            raise _wrong("model", "a string")
        fields.model = None
    if routed:
        if fields.stream is not None and as_bool(fields.stream) is None:
            raise _wrong("stream", "true or false")
        _check_prompt(path, fields, spans)
    return ParsedBody(path, fields, body, spans, survey, search)


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


def _check_prompt(path: str, fields: BodyFields, spans: JsonSpans | None) -> None:
    if path in (CHAT_PATH, MESSAGES_PATH) and not _is_of(fields.messages, spans, "messages", (list, NoneType)):
        raise _wrong("messages", "a list of messages")
    if path == RESPONSES_PATH and not _is_of(fields.input, spans, "input", (str, list, NoneType)):
        raise _wrong("input", "a string or a list of input items")
    if path == COMPLETIONS_PATH and not _is_of(fields.prompt, spans, "prompt", (str, list, NoneType)):
        raise _wrong("prompt", "a string, a list of strings, or token ids")


def _is_of(value: object, spans: JsonSpans | None, name: str, types: tuple[type, ...]) -> bool:
    """Return whether a field has one of these types. The first byte of a field that is not decoded shows its type."""
    if spans is None:
        return isinstance(value, types)
    opening = spans.opening(name)
    return not opening or _TYPES.get(opening) in types


_TYPES: dict[bytes, type] = {b"[": list, b'"': str, b"n": NoneType}


def _wrong(name: str, wanted: str) -> RequestError:
    return RequestError(ErrorKind.INVALID_BODY, f"`{name}` must be {wanted}.", param=name)
