"""Takes transfer parameters out of an answer, because they are not for the client, and collects its token ids."""

from __future__ import annotations

import re
from array import array
from typing import ClassVar

import msgspec

from backends.foreign_json import json_decoder
from backends.vllm.handover.parameters import MAX_TOKEN_IDS
from router.gateway.http.json_structs import AnswerTokens
from router.gateway.http.sse import data_of
from router.gateway.http.usage import TAIL_BYTES
from router.gateway.rewrites.usage_frame import HELD_BYTES, UsageFrame

_PARAMS = re.compile(rb',\s*"kv_transfer_params"\s*:\s*(\{[^{}]*+\})')
_DECODER = json_decoder(AnswerTokens)


class AnswerIds(UsageFrame):
    """Passes on a stream without transfer parameters. `taken` is the last event that reports usage.

    Generated text cannot contain the member's name in bare quotes. Without `collects`, `ids` stays empty. For an answer
    that is no stream, use `of_body`.
    """

    asked_for: ClassVar[bool] = False
    __slots__ = ("_collects", "ids", "params")

    def __init__(self, *, collects: bool) -> None:
        super().__init__(None)
        self._collects = collects
        self.ids = array("I")
        """The token ids of the answer so far."""
        self.params = b""
        """The transfer parameters, as JSON."""

    def of_body(self) -> UsageFrame | None:
        """Return the filter for an answer that is one JSON document."""
        return AnswerIdsOfBody(collects=self._collects)

    def ended(self) -> None:
        """Note the end of the answer: `ids` and `params` are complete."""

    def _suspicious(self, content: bytes) -> bool:
        if b'"usage"' in content or self._has_ids(content):
            return True
        return b'"kv_transfer_params"' in content and _PARAMS.search(content) is not None  # vLLM writes null otherwise

    def _has_ids(self, content: bytes) -> bool:
        return self._collects and b'"token_ids"' in content

    def _judged(self, event: bytes) -> bytes:
        event = self._without_params(event, data_of(event) if self._has_ids(event) else b"", b"")
        if b'"usage"' in event:
            self.taken = event
        return event

    def _without_params(self, content: bytes, document: bytes, instead: bytes) -> bytes:
        if self._has_ids(content):
            try:
                self.ids.extend(
                    token for choice in _DECODER.decode(document).choices for token in choice.token_ids or ()
                )
                if len(self.ids) > MAX_TOKEN_IDS:
                    self._collects, self.ids = False, array("I")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
                self._collects, self.ids = False, array("I")
        found = _PARAMS.search(content)
        if found is None:
            return content
        self.params = found[1]
        return content[: found.start()] + instead + content[found.end() :]


class AnswerIdsOfBody(AnswerIds):
    """Keeps a JSON document back until `rest`. Of one of more than `HELD_BYTES`, it keeps the last `TAIL_BYTES`.

    That end has the transfer parameters, which vLLM writes last; the token ids do not count then.
    """

    __slots__ = ("_ended",)

    def __init__(self, *, collects: bool) -> None:
        super().__init__(collects=collects)
        self._ended = False

    def feed(self, content: bytes) -> bytes:
        """Take content of the document and return the bytes to pass on."""
        self._pending += content
        if len(self._pending) <= HELD_BYTES and not self._within:
            return b""
        self._within = True
        shown = bytes(self._pending[:-TAIL_BYTES])
        del self._pending[:-TAIL_BYTES]
        return shown

    def tail(self) -> bytes:
        return bytes(self._pending[-TAIL_BYTES:])

    def ended(self) -> None:
        if not self._ended:
            self._ended, whole = True, bytes(self._pending)
            if self._within:
                self._collects = False
            self._pending[:] = self._without_params(whole, whole, b',"kv_transfer_params":null')

    def rest(self) -> bytes:
        self.ended()
        return super().rest()
