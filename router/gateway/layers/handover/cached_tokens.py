"""Puts another worker's number of cached tokens into the usage of an answer."""

from __future__ import annotations

import re
from collections.abc import Callable

from router.requests.answers.usage import TAIL_BYTES, USAGE
from router.requests.outgoing import AnswerFilter

_CACHED = re.compile(rb'("cached_tokens"\s*:\s*)\d+')
_DETAILS = re.compile(rb'("prompt_tokens_details"\s*:\s*)\{[^{}]*+\}')
_READ = re.compile(rb'("cache_read_input_tokens"\s*:\s*)(\d{1,15})')
_INPUT = re.compile(rb'("input_tokens"\s*:\s*)(\d{1,15})')
_REPORTS = (b'"cached_tokens"', b'"cache_read_input_tokens"')


class CachedTokens(AnswerFilter):
    """Rewrites the events of a stream that report cached tokens. `taken` is the last of them.

    `cached` returns the number, or None if the other worker has not reported it: then the details are null, as from a
    worker that reports none. For an answer that is no stream, use `of_body`.
    """

    __slots__ = ("_cached",)

    def __init__(self, cached: Callable[[], int | None]) -> None:
        super().__init__()
        self._cached = cached

    def of_body(self) -> AnswerFilter | None:
        """Return the rewrite for an answer that is one JSON document."""
        return CachedTokensOfBody(self._cached)

    def _suspicious(self, content: bytes) -> bool:
        return any(name in content for name in _REPORTS)

    def _judged(self, event: bytes) -> bytes:
        self.taken = with_cached_tokens(event, self._cached())
        return self.taken


class CachedTokensOfBody(CachedTokens):
    """Keeps the end of a JSON document back until `rest`, and rewrites its usage there: vLLM writes it at the end."""

    __slots__ = ()

    def feed(self, content: bytes) -> bytes:
        pending = self._pending
        pending += content
        if len(pending) <= 2 * TAIL_BYTES:
            return b""
        shown = bytes(pending[:-TAIL_BYTES])
        del pending[:-TAIL_BYTES]
        return shown

    def tail(self) -> bytes:
        return with_cached_tokens(bytes(self._pending), self._cached())

    def rest(self) -> bytes:
        rest = self.tail()
        self._pending.clear()
        return rest


def with_cached_tokens(content: bytes, cached_tokens: int | None) -> bytes:
    first = max(0, len(content) - TAIL_BYTES)
    start = content.rfind(b'"usage"', first)
    while start >= 0:
        found = USAGE.match(content, start)
        if found is not None:
            return content[: found.start(1)] + _rewritten(found[1], cached_tokens) + content[found.end(1) :]
        start = content.rfind(b'"usage"', first, start)
    return content


def _rewritten(usage: bytes, cached_tokens: int | None) -> bytes:
    if (read := _READ.search(usage)) is not None:
        return _rewritten_message(usage, int(read[2]), cached_tokens)
    if cached_tokens is None and b'"input_tokens_details"' not in usage:
        return _DETAILS.sub(rb"\1null", usage)
    return _CACHED.sub(rb"\g<1>%d" % (cached_tokens or 0), usage)  # a response always has a number


def _rewritten_message(usage: bytes, read_tokens: int, cached_tokens: int | None) -> bytes:
    more_tokens = read_tokens - (cached_tokens or 0)
    shown = b"null" if cached_tokens is None else b"%d" % cached_tokens
    usage = _READ.sub(rb"\g<1>" + shown, usage)
    return _INPUT.sub(lambda found: found[1] + b"%d" % max(0, int(found[2]) + more_tokens), usage)
