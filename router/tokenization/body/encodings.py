"""Convert a JSON body to plain UTF-8, because Python's parser, which vLLM uses, reads other encodings too.

It finds the encoding from the first bytes: UTF-8 with a mark, and UTF-16 and UTF-32 with or without one.
"""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

STEP_BYTES = 65_536
"""A step of this size takes less than a millisecond."""
_PLAIN, _MARKED = "utf-8", "utf-8-sig"
_MARK_BYTES = 3
_ERRORS = "surrogatepass"
"""As Python's parser: lone surrogates are left to the worker."""


def utf8_steps(body: bytes) -> Generator[None, None, bytes]:
    """Return `body` in UTF-8 without a mark, in short steps of together 2 ms per MB; itself if it is that already.

    Raises:
        UnicodeDecodeError: it is in none of these encodings.
    """
    encoding = json.detect_encoding(body)
    if encoding in (_PLAIN, _MARKED):
        return body[_MARK_BYTES:] if encoding == _MARKED else body
    decoder = getincrementaldecoder(encoding)(_ERRORS)
    pieces: list[bytes] = []
    for start in range(0, len(body), STEP_BYTES):
        end = start + STEP_BYTES
        pieces.append(decoder.decode(body[start:end], end >= len(body)).encode(_PLAIN, _ERRORS))
        yield
    return b"".join(pieces)


def finished(steps: Generator[None, None, T]) -> T:
    """Run all steps at once; return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
