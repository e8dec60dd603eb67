"""Decode all fields of a body, within bounds of time.

One call of a parser cannot be interrupted, so a body whose elements take long is not decoded. The counts of brackets,
floats and digits bound the time; `router.tokenization.body.bounds` has those of brackets and commas off the event loop.
"""

from __future__ import annotations

import json
from secrets import randbelow

from backends.foreign_json import json_decoder
from router.errors import ErrorKind, RequestError
from router.tokenization.body.fields import PROMPT_FIELDS, BodyFields
from router.tokenization.threads import TextUnavailable

INLINE_FLOATS = 8_192
"""Floats of a body that is decoded on the event loop: at most 4 ms."""
MOST_FLOATS = 50_000
"""Floats of a body that is decoded at all: at most 25 ms."""
INLINE_CONTAINERS = 16_384
"""Objects and arrays of a body that is decoded on the event loop, counted inside strings too: at most 3 ms."""
UNSAMPLED_BYTES = 65_536
"""Any content of this size takes at most 5 ms."""
INLINE_DIGITS_BYTES = 16_384
"""Bytes of long integers in a body that is handled on the event loop: 0.5 ms to decode, and as long to render."""
LONG_DIGITS_BYTES = 262_144
"""Bytes of long integers in a body that is decoded. Their time grows with the square of their digits: 7 ms."""
NOT_AN_OBJECT = "The request body must be a JSON object."
_SAMPLED_OF = 251
"""One byte of as many is looked at; a prime, so that no short pattern repeats with it. Runs of fewer than twice as many
digits take no longer than other JSON.
"""
_NEXT_SAMPLE = 97
_MOST_OPENING = 16
"""A sample in which one byte of as many opens an object or array is of a body whose brackets are counted."""
_DIGITS = bytes(0x31 if chr(byte) in "0123456789" else 0x20 for byte in range(256))
_SCALARS = tuple(name for name in BodyFields.__struct_fields__ if name not in PROMPT_FIELDS)
NO_SCALAR: list[object] = []
"""Stands for a value that vLLM refuses in a field that takes one string, number or flag."""


class CostlyBody(TextUnavailable):
    """Decoding the body would take too long."""


class FloatBudget:
    """Converts floats as long as some are `left`."""

    def __init__(self, left: int = 0) -> None:
        self.left = left

    def read(self, text: str) -> float:
        """Return the number.

        Raises:
            CostlyBody: none are left.
        """
        self.left -= 1
        if self.left < 0:
            raise CostlyBody("the body has too many floats to be decoded")
        return float(text)


class Sampler:
    """Looks at a share of a body's bytes. Nobody else knows which, so no body is written around them."""

    def __init__(self) -> None:
        self._first = randbelow(_SAMPLED_OF)

    def sample(self, body: bytes) -> bytes:
        self._first = (self._first + _NEXT_SAMPLE) % _SAMPLED_OF
        return body[self._first :: _SAMPLED_OF]


_sampler = Sampler()
_inline = FloatBudget()
_decode_inline = json_decoder(BodyFields, _inline.read).decode


def inline_fields(body: bytes) -> BodyFields:
    """Decode `body` on the event loop, in at most 5 ms.

    Raises:
        CostlyBody: it would take longer.
        ValueError, RecursionError: it is no JSON object to msgspec.
    """
    if len(body) > UNSAMPLED_BYTES and _is_costly(body):
        raise CostlyBody("the body has too many elements to be decoded on the event loop")
    _inline.left = INLINE_FLOATS
    return _decode_inline(body)


def all_fields(body: bytes) -> BodyFields:
    """Decode `body`, with Python's parser if only that accepts it. Time and memory depend on the content.

    Raises:
        CostlyBody: it has too many floats.
        ValueError, RecursionError: it is no JSON object.
    """
    budget = FloatBudget(MOST_FLOATS)
    try:
        return json_decoder(BodyFields, budget.read).decode(body)
    except (ValueError, RecursionError):
        budget.left = MOST_FLOATS
        return python_fields(body, budget)


def python_fields(body: bytes, budget: FloatBudget) -> BodyFields:
    """Decode `body` with Python's parser, which vLLM uses: slower and more lenient.

    Raises:
        CostlyBody: there are more floats than `budget` has left.
        ValueError, RecursionError: it is not JSON.
        RequestError: INVALID_BODY; it is no object.
    """
    found = json.loads(body, parse_float=budget.read)
    if not isinstance(found, dict):
        raise RequestError(ErrorKind.INVALID_BODY, NOT_AN_OBJECT)
    fields = BodyFields(**{name: found[name] for name in BodyFields.__struct_fields__ if name in found})
    for name in _SCALARS:
        if not is_unicode(getattr(fields, name)):
            setattr(fields, name, NO_SCALAR)
    return fields


def is_unicode(value: object) -> bool:
    """Return whether `value` is not a string with a lone surrogate, which cannot be logged or hashed."""
    if not isinstance(value, str) or value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def long_digit_bytes(body: bytes) -> int:
    """Return how many bytes of `body` are in the middle of long runs of digits, inside strings too."""
    digits = body[::_SAMPLED_OF].translate(_DIGITS)
    found, place = 0, digits.find(b"11")
    while place >= 0:
        start = place * _SAMPLED_OF
        if body[start : start + _SAMPLED_OF].isdigit():
            found += _SAMPLED_OF
        place = digits.find(b"11", place + 1)
    return found


def _is_costly(body: bytes) -> bool:
    """Return whether `body` has many containers or long integers. They are counted if a sample has many."""
    sample = _sampler.sample(body)
    dense = (sample.count(b"[") + sample.count(b"{")) * _MOST_OPENING > len(sample)
    if dense and body.count(b"[") + body.count(b"{") > INLINE_CONTAINERS:
        return True
    return b"111" in sample.translate(_DIGITS) and long_digit_bytes(body) > INLINE_DIGITS_BYTES
