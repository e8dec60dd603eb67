"""The token counts that a response reports, read from its tail without decoding the rest.

Generated text cannot contain ``"usage"`` followed by an object, because its quotes are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from backends.foreign_json import json_decoder
from router.placement.request import Usage
from router.requests.answers.json_structs import ReportedUsage

USAGE = re.compile(rb'"usage"\s*:\s*(\{[^{}]*+(?:\{[^{}]*+\}[^{}]*+)*+\})')
_NO_USAGE = re.compile(rb'"usage"\s*:\s*null')
TAIL_BYTES = 65_536
"""How much of a body's end is kept. vLLM writes the usage after the choices."""


_DECODER = json_decoder(ReportedUsage)


def find_usage(pieces: Iterable[bytes]) -> Usage:
    tail = b"".join(pieces)
    start = tail.rfind(b'"usage"')
    while start >= 0:
        found = USAGE.match(tail, start)
        if found is not None:
            return _decode(found[1])
        if _NO_USAGE.match(tail, start) is not None:
            break  # an object before it is the client's own: a response repeats its tools
        start = tail.rfind(b'"usage"', 0, start)
    return Usage()


def _decode(text: bytes) -> Usage:
    try:
        usage = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Usage()
    details = usage.prompt_tokens_details or usage.input_tokens_details
    cached = details.cached_tokens if details is not None else usage.cache_read_input_tokens
    return Usage(
        usage.prompt_tokens if usage.prompt_tokens is not None else _all_input(usage),
        usage.completion_tokens if usage.completion_tokens is not None else usage.output_tokens,
        cached,
    )


def _all_input(usage: ReportedUsage) -> int | None:
    if usage.input_tokens is None:
        return None
    return usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)


def trim(pieces: list[bytes], keep_bytes: int = TAIL_BYTES) -> None:
    if len(pieces) > 1 or (pieces and len(pieces[0]) > keep_bytes):
        pieces[:] = [b"".join(pieces)[-keep_bytes:]]
