"""Convert a JSON body to plain UTF-8, because Python's parser, which vLLM uses, reads other encodings too.

It finds the encoding from the first bytes: UTF-8 with a mark, and UTF-16 and UTF-32 with or without one.
"""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Generator

STEP_BYTES = 65_536
"""A step of this size takes less than a millisecond."""
_PLAIN, _MARKED = "utf-8", "utf-8-sig"
_MARK_BYTES = 3
_ERRORS = "surrogatepass"
"""As Python's parser: lone surrogates are left to the worker."""


def as_utf8(body: bytes) -> bytes:
    """Return `body` in UTF-8 without a mark; itself if it is that already. At once, at 2 ms per MB.

    Raises:
        UnicodeDecodeError: it is in none of these encodings.
    """
    encoding = json.detect_encoding(body)
    if encoding == _PLAIN:
        return body
    if encoding == _MARKED:
        return body[_MARK_BYTES:]
    return body.decode(encoding, _ERRORS).encode(_PLAIN, _ERRORS)


def utf8_steps(body: bytes) -> Generator[None, None, bytes]:
    """Return what `as_utf8` returns, in short steps.

    Raises:
        UnicodeDecodeError: as `as_utf8`.
    """
    encoding = json.detect_encoding(body)
    if encoding in (_PLAIN, _MARKED):
        return as_utf8(body)
    decoder = getincrementaldecoder(encoding)(_ERRORS)
    pieces: list[bytes] = []
    for start in range(0, len(body), STEP_BYTES):
        end = start + STEP_BYTES
        pieces.append(decoder.decode(body[start:end], end >= len(body)).encode(_PLAIN, _ERRORS))
        yield
    return b"".join(pieces)
