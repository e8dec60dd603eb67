"""Read the few fields of a request body that the router uses.

A body that vLLM accepts is never refused here, whatever its size. There are four readers, each with a `ParsedBody` as
its result:

- A prompt of at most `WHOLE_BYTES` is decoded at once, without the messages at a start that is known.
- Of a larger body, one with many elements or one without a prompt, only the small fields are decoded: `json_spans`
  finds their places. `ParsedBody.decoded` decodes the prompt, off the event loop and within bounds: objects take up to
  forty times the bytes of their JSON.
- A body that only Python's parser accepts (NaN, lone surrogates, UTF-16 and UTF-32) is read by that parser if it is
  small.
- Any larger body is read step by step (`large_json`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Mapping
from typing import TypeAlias

from xxhash import xxh3_128_intdigest

from router.errors import RequestError
from router.tokenization.body.decoding import INLINE_FLOATS, CostlyBody, FloatBudget, inline_fields, python_fields
from router.tokenization.body.encodings import finished, utf8_steps
from router.tokenization.body.fields import BodyFields
from router.tokenization.body.json_spans import (
    FIELDS,
    REUSED,
    TRANSFER_FIELDS,
    JsonSpans,
    find_spans,
    invalid_json,
)
from router.tokenization.body.known_bodies import KnownBodies, KnownStart, new_messages
from router.tokenization.body.large_json import BodySurvey, LargeObjectScan
from router.tokenization.body.parsed_body import CHAT_PATH, PROMPT_PATHS, ParsedBody

Places: TypeAlias = Mapping[str, tuple[int, int]]
"""Start and end of values by name."""

WHOLE_BYTES = 262_144
"""Bodies up to this size are decoded whole, unless they have many elements. It takes at most 5 ms and 10 MB."""
MIN_BODY_BYTES = 8_192
"""A chat of a known conversation is continued from this size on. The whole of a shorter one takes as long."""
PYTHON_BYTES = 65_536
"""Bodies up to this size that msgspec refuses are read by Python's parser. Any content takes at most 5 ms."""
READ_AT_ONCE_BYTES = 1_048_576
"""Bodies up to this size are read at once, in at most 5 ms; larger ones step by step."""
_OTHER_JSON = re.compile(rb'[ \t\r\n]{0,64}[\["0-9tfn-]')
"""The beginning of JSON that is not an object."""
_EXTRA_ARGS = ("extra_args",)


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
    has_prompt = path in PROMPT_PATHS
    if not body and not has_prompt:
        return ParsedBody(path, BodyFields(), body, 0)
    try:
        if has_prompt and len(body) <= WHOLE_BYTES:
            try:
                return _small(path, body, known)
            except CostlyBody:
                pass
        spans = find_spans(body)
        return ParsedBody(path, spans.small_fields(), body, xxh3_128_intdigest(body), spans)
    except (ValueError, RecursionError):
        return _by_python(path, body)


def _small(path: str, body: bytes, known: KnownBodies | None) -> ParsedBody:
    digest = xxh3_128_intdigest(body)
    if known is None or path != CHAT_PATH or len(body) < MIN_BODY_BYTES:
        return ParsedBody(path, inline_fields(body), body, digest)
    start = known.search(body)
    fields = None if start is None else _new_fields(start)
    if fields is None:
        start, fields = None, inline_fields(body)
    return ParsedBody(path, fields, body, digest, known=start, searched=True)


def _new_fields(start: KnownStart) -> BodyFields | None:
    """Return the fields of a body with a known start; None if it has to be read as a whole.

    The bytes of the start were part of a body that was read, so only the others can have mistakes.
    """
    try:
        fields = inline_fields(start.shortened)
    except (ValueError, RecursionError):
        return None
    return fields if new_messages(fields) is not None else None


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
    parsed = ParsedBody(path, fields, text, xxh3_128_intdigest(text))
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
    parsed = ParsedBody(path, spans.small_fields(), text, survey.digest, spans, survey)
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
