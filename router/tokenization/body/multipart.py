"""Read a multipart form (RFC 7578) in steps, as Starlette and python-multipart read it for vLLM.

They are lenient, each version in its own way: a field or a disposition may be repeated, and the last one counts; lines
before the first boundary may be skipped. The model that a form names decides about routes, limits and the worker. So a
form is read by a grammar that every version reads in one way, and any other form is refused.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass

from router.errors import ErrorKind, RequestError
from router.tokenization.body.encodings import finished

MAX_PARTS = 1_000
"""As many fields as Starlette reads."""
MAX_PART_HEAD_BYTES = 8_192
MAX_PART_HEADERS = 16
"""Twice as many as python-multipart 0.0.34 reads."""
MAX_FIELD_BYTES = 1_048_576
"""Largest part that is no file, as in Starlette."""
MAX_MODEL_BYTES = 1_024
"""A longer model name is cut here. No model has such a name, and the error repeats it."""
STEP_BYTES = 262_144
"""What is searched in one step: at most about 3 ms, whatever it contains."""
MAX_ESCAPES = 4_096
"""JSON escapes of the first 256 characters in a form, which are searched one by one."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_PARAMETER = re.compile(
    rb";[ \t]*+(?:(" + _TOKEN + rb'++)[ \t]*+=[ \t]*+(?:"((?:[^"\\]++|\\.)*+)"[ \t]*+|([^;"\\]*+)))?+'
)
"""Every quantifier is possessive, so that a failed match is not repeated with a shorter one, which keeps the time
linear.
"""
_KIND = re.compile(rb"[ \t]*+((?:" + _TOKEN + rb"|/)*+)[ \t]*+(?=;|\Z)")
_FIELD_NAME = re.compile(_TOKEN + rb"++")
_BOUNDARY = re.compile(rb"[!#-\[\]-~]{1,256}+")
"""Without blanks: a repeated Content-Type header is joined to the first one with a comma and a blank."""
_FORM, _URLENCODED = b"multipart/form-data", b"application/x-www-form-urlencoded"
_ASCII_ALIKE = frozenset({b"utf-8", b"utf8", b"us-ascii", b"iso-8859-1", b"latin-1"})
"""Character sets in which the characters of JSON syntax have their ASCII bytes."""
_TRANSFER_NAMES = (b'kv_transfer_params"', b'ec_transfer_params"')
_OVERLAP_BYTES = 32
_ESCAPE = b"\\u00"
_ESCAPED_LETTER = re.compile(rb"\\u00(?:5[fF]|6[0-9a-fA-F]|7[0-9aA])")
"""A small letter or an underscore as a JSON escape, which is only used to hide a name."""


@dataclass(frozen=True, slots=True)
class Form:
    """What counts of a form.

    `model` is None if no field names one. `start` and `end` are the place of its value in the body; without one, the
    place of a first part. `opening` begins each part. `transfer` is the sign of a transfer field, see `_transfer_sign`.
    """

    model: str | None
    start: int
    end: int
    opening: bytes
    named: bool
    transfer: str | None

    def renamed(self, body: bytes, model: str) -> tuple[bytes, Form]:
        value = model.encode()
        before, after = body[: self.start], body[self.end :]
        if not self.named:
            before += b'%b\r\nContent-Disposition: form-data; name="model"\r\n\r\n' % self.opening
            after = b"\r\n" + after
        form = Form(model, len(before), len(before) + len(value), self.opening, True, self.transfer)
        return before + value + after, form


def form_steps(content_type: bytes, body: bytes) -> Generator[None, None, Form | None]:
    """Read the form in `body`; None if the body is empty, or no form by its type.

    Raises:
        RequestError: INVALID_BODY; it is not certain how a worker reads the form.
    """
    kind = content_type.partition(b";")[0].strip(b" \t").lower()
    if not body or (kind != _FORM and kind != _URLENCODED):
        return None
    if kind == _URLENCODED:
        raise _refused("must be multipart/form-data")
    return (yield from _FormReader(_opening(content_type), body).steps())


def read_form(content_type: bytes, body: bytes) -> Form | None:
    """Read a small form at once, with the errors of `form_steps`."""
    return finished(form_steps(content_type, body))


def _opening(content_type: bytes) -> bytes:
    parameters = _parameters(content_type)
    if parameters is None or any(b"*" in name for name in parameters):
        raise _refused("has a Content-Type that cannot be read")
    if parameters.get(b"charset", b"utf-8").lower() not in _ASCII_ALIKE:
        raise _refused("must be in UTF-8")
    boundary = parameters.get(b"boundary", b"")
    if _BOUNDARY.fullmatch(boundary) is None:
        raise _refused("has no usable boundary")
    return b"--" + boundary


class _FormReader:
    def __init__(self, opening: bytes, body: bytes) -> None:
        self._body = body
        self._delimiter = b"\r\n" + opening
        self._start = self._end = -1
        """The place of the model's value."""
        self._transfer: str | None = None
        self._escapes = 0
        self._work = 0
        """Bytes that this step has read. Those of a head count more."""

    def steps(self) -> Generator[None, None, Form]:
        body, opening = self._body, self._delimiter[2:]
        first = place = self._first()
        for part in range(MAX_PARTS + 1):
            after = place + len(opening)
            if body.startswith(b"--", after):
                return self._form(first, opening)
            if not body.startswith(b"\r\n", after):
                raise _refused(f"has more than its boundary in a line, before part {part + 1}")
            head_end = body.find(b"\r\n\r\n", after, after + MAX_PART_HEAD_BYTES)
            if head_end < 0:
                raise _refused(f"has a head of more than {MAX_PART_HEAD_BYTES} bytes or without an end")
            # an empty head ends where it begins; compiled code refuses a slice that starts beyond its end
            name, is_file = _named(body[min(after + 2, head_end) : head_end])
            start, end = head_end + 4, -1
            window = start
            while end < 0:
                if window >= len(body):
                    raise _refused("has no end")
                end = body.find(self._delimiter, window, window + STEP_BYTES + len(self._delimiter))
                window += STEP_BYTES
                if end < 0:
                    self._work = 0
                    yield
            if name == b"model":
                if self._start >= 0:
                    raise _refused("has two `model` fields")
                self._start, self._end = start, end
            if not is_file:
                if end - start > MAX_FIELD_BYTES:
                    raise _refused(f"has a field of more than {MAX_FIELD_BYTES} bytes")
                yield from self._search(start, end)
            self._work += 512 + 8 * (start - place) + (end - start) % STEP_BYTES
            if self._work > STEP_BYTES:
                self._work = 0
                yield
            place = end + 2
        raise _refused(f"has more than {MAX_PARTS} parts")

    def _first(self) -> int:
        """Return where the first part opens: nothing but line breaks may come before."""
        body, opening = self._body, self._delimiter[2:]
        place = 0
        while body[place : place + 2] == b"\r\n":
            place += 2
            if place > MAX_PART_HEAD_BYTES:
                break
        if not body.startswith(opening, place):
            raise _refused("does not begin with its boundary")
        return place

    def _search(self, start: int, end: int) -> Generator[None, None, None]:
        """Search a field for signs of transfer fields, which vLLM passes on from `vllm_xargs`: a name as it ends in
        JSON, or an escape that may hide one."""
        body = self._body
        while start < end and self._transfer is None:
            step = min(start + STEP_BYTES, end)
            piece = body[start : min(step + _OVERLAP_BYTES, end)]
            for name in _TRANSFER_NAMES:
                if name in piece:
                    self._transfer = name[: len(name) - 1].decode()
            if _ESCAPE in piece:
                self._escapes += piece.count(_ESCAPE)
                if self._transfer is None and (
                    self._escapes > MAX_ESCAPES or _ESCAPED_LETTER.search(piece) is not None
                ):
                    self._transfer = _ESCAPE.decode()
            start = step
            if start < end:
                self._work = 0
                yield

    def _form(self, first: int, opening: bytes) -> Form:
        start, end = self._start, self._end
        if start < 0:
            return Form(None, first, first, opening, False, self._transfer)
        value = self._body[start : min(end, start + MAX_MODEL_BYTES)]
        return Form(value.decode("utf-8", "replace") or None, start, end, opening, True, self._transfer)


def _named(head: bytes) -> tuple[bytes, bool]:
    disposition: bytes | None = None
    lines = head.split(b"\r\n", MAX_PART_HEADERS)
    if len(lines) > MAX_PART_HEADERS:
        raise _refused(f"has a part with more than {MAX_PART_HEADERS} headers")
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or _FIELD_NAME.fullmatch(name) is None or b"\r" in value or b"\n" in value or b"\0" in value:
            raise _refused("has a part with a header that cannot be read")
        if name.lower() == b"content-disposition":
            if disposition is not None:
                raise _refused("has a part with two Content-Disposition headers")
            disposition = value
    parameters = None if disposition is None else _parameters(disposition)
    if parameters is None or b"name" not in parameters or any(name.startswith(b"name*") for name in parameters):
        raise _refused("has a part whose name cannot be read")
    name = parameters[b"name"]
    if name == b"model" and any(other.startswith(b"filename") for other in parameters):
        raise _refused("has `model` as a file")
    return name, b"filename" in parameters


def _parameters(header: bytes) -> dict[bytes, bytes] | None:
    """Return the parameters of a header such as ``form-data; name="model"``, with names in lower case.

    None for a header that is read in several ways: with a repeated parameter, text behind a quoted value, or a quoted
    value that ends with a backslash.
    """
    kind = _KIND.match(header)
    if kind is None:
        return None
    found: dict[bytes, bytes] = {}
    place = kind.end()
    while place < len(header):
        parameter = _PARAMETER.match(header, place)
        if parameter is None or parameter.end() == place:
            return None
        place = parameter.end()
        name, quoted, plain = parameter.groups()
        if name is None:
            continue
        name = name.lower()
        if name in found or (quoted is not None and quoted.endswith(b"\\")):
            return None
        found[name] = quoted if quoted is not None else plain.strip(b" \t")
    return found


def _refused(why: str) -> RequestError:
    return RequestError(ErrorKind.INVALID_BODY, f"The form {why}.")
