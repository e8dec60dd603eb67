"""Find the `model` field of a multipart form (RFC 7578), in time linear in the body's size."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_PARTS = 32
"""Parts examined. The longest OpenAI form with a model, of an audio transcription, has some 12."""
MAX_PART_HEAD_BYTES = 8_192
"""Largest head of a part, as in python-multipart, which vLLM uses."""
MAX_PARAMETERS = 16
"""Parameters of one header that are examined."""
MAX_MODEL_BYTES = 1_024
"""A longer model name is cut here. No model has such a name, and the error repeats it."""

_PARAMETER = re.compile(rb';[ \t]*+([^\s;="]++)[ \t]*+=[ \t]*+(?:"((?:[^"\\]++|\\.)*+)"[ \t]*+|([^;"]*+))')
"""Every quantifier is possessive, so that a failed match is not repeated with a shorter one, which keeps the time
linear.
"""
_CHARSET = re.compile(rb"charset[*0-9]*+[ \t]*+=[ \t]*+\"?([^\s\";,]*+)", re.IGNORECASE)
_ASCII_ALIKE = frozenset({b"utf-8", b"utf8", b"us-ascii", b"iso-8859-1", b"latin-1"})
"""Character sets in which the characters of JSON syntax have their ASCII bytes."""
_TRANSFER_NAMES = (b'kv_transfer_params"', b'ec_transfer_params"')
_ESCAPE = b"\\u00"
MAX_ESCAPES = 4_096
"""JSON escapes of the first 256 characters in a form, which are searched one by one."""
_ESCAPED_LETTER = re.compile(rb"\\u00(?:5[fF]|6[0-9a-fA-F]|7[0-9aA])")
"""A small letter or an underscore as a JSON escape, which is only used to hide a name."""


def multipart_model(content_type: str, body: bytes) -> str | None:
    """Return the `model` field of a form; None if its first parts have none."""
    place = model_part(content_type, body)
    if place is None:
        return None
    value = body[place[0] : min(place[1], place[0] + MAX_MODEL_BYTES)]
    return value.decode("utf-8", "replace").strip() or None


def model_part(content_type: str, body: bytes) -> tuple[int, int] | None:
    """Return where the content of the `model` field starts and ends; None if the first parts are other fields."""
    opening = form_opening(content_type)
    if opening is None:
        return None
    return next(((start, end) for name, start, end in _parts(body, b"\r\n" + opening) if name == b"model"), None)


def form_opening(content_type: str) -> bytes | None:
    """Return the bytes that open each part of a form; None without a boundary."""
    boundary = _parameters(content_type.encode("latin-1", "replace")).get(b"boundary")
    return b"--" + boundary if boundary else None


def _parts(body: bytes, delimiter: bytes) -> Iterator[tuple[bytes | None, int, int]]:
    """Yield the name of each part, and where its content starts and ends in `body`."""
    opening = delimiter[2:]
    place = 0 if body.startswith(opening) else _line_after(body.find(delimiter))
    for _ in range(MAX_PARTS):
        start = place + len(opening)
        if place < 0 or body.startswith(b"--", start):
            return
        head_end = body.find(b"\r\n\r\n", start, start + MAX_PART_HEAD_BYTES)
        if head_end < 0:
            return
        following = body.find(delimiter, head_end + 2)
        yield _field_name(body[start:head_end]), head_end + 4, following if following >= 0 else len(body)
        place = _line_after(following)


def _line_after(line_break: int) -> int:
    return line_break + 2 if line_break >= 0 else -1


def _field_name(head: bytes) -> bytes | None:
    """Return the field's name. `head` starts with the rest of the boundary's line, empty after a delimiter."""
    behind, *lines = head.split(b"\r\n")
    if behind.strip(b" \t"):
        return None
    for line in lines:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            return _parameters(value).get(b"name")
    return None


def _parameters(header: bytes) -> dict[bytes, bytes]:
    """Return the parameters of a header such as ``form-data; name="model"``, names in lower case, up to the first
    error."""
    found: dict[bytes, bytes] = {}
    place = header.find(b";")
    for _ in range(MAX_PARAMETERS if place >= 0 else 0):
        parameter = _PARAMETER.match(header, place)
        if parameter is None:
            break
        name, quoted, plain = parameter.groups()
        found.setdefault(name.lower(), quoted if quoted is not None else plain.strip())
        place = parameter.end()
    return found


def in_utf8(content_type: bytes) -> bool:
    """Return whether the form's fields are in UTF-8 or similar; its header may name another character set."""
    return all(named[1].lower() in _ASCII_ALIKE for named in _CHARSET.finditer(content_type))


def transfer_argument(body: bytes) -> str | None:
    """Return the sign of a transfer field in a form's `vllm_xargs`, which vLLM passes on: a name, or an escape that may
    hide one.

    The whole body is searched, since vLLM accepts more parts and more spellings of a part's name than are examined
    here. The search is for the two names as they end in JSON, and for names written with escapes.
    """
    for name in _TRANSFER_NAMES:
        if name in body:
            return name[:-1].decode()
    escapes = body.count(_ESCAPE)
    hidden = escapes > MAX_ESCAPES or (escapes > 0 and _ESCAPED_LETTER.search(body) is not None)
    return _ESCAPE.decode() if hidden else None
