"""The request that another worker gets: the client's own, with P + G as its prompt and what is left of its budget."""

from __future__ import annotations

from array import array
from typing import Any, Final

import msgspec

from backends.foreign_json import json_decoder
from router.gateway.layers.migration.request_fields import MessageCalls, TrackedFields
from router.tokenization.body.parsed_body import CHAT_PATH, as_int

COMPLETION_TOKENS: Final = 16
"""vLLM's limit of a completion that gives none."""
_LEFT_OUT: Final = (
    "messages", "prompt", "kv_transfer_params", "return_token_ids",
    "add_generation_prompt", "continue_final_message", "documents", "chat_template",
)  # fmt: skip
"""What is written again, and what matters only to a prompt that is rendered."""
_CALL: Final = {"id": "0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_MEMBERS: Final = json_decoder(dict[str, msgspec.Raw])
_CALLS: Final = json_decoder(list[MessageCalls])


class ContinuationBody:
    """What the rest of an answer needs of a request, as bytes of JSON: its parameters and its tools.

    vLLM takes no messages into account beside ids. Parsers of tool calls number the calls by those of the messages,
    so their number is kept.
    """

    __slots__ = ("_calls", "_chat", "_least", "_limit", "_members")

    def __init__(self, path: str, body: bytes, fields: TrackedFields) -> None:
        self._chat = path == CHAT_PATH
        self._limit = _limit(fields, chat=self._chat)
        self._least = as_int(fields.min_tokens) or 0
        self._calls = _calls_in(bytes(fields.messages)) if bytes(fields.tools) else 0
        written = (*_LEFT_OUT, "" if self._limit is None else self._limit[0], "min_tokens" if self._least else "")
        members = _MEMBERS.decode(body)
        kept = {name: value for name, value in members.items() if name not in written}
        # without the brace at its end; the copy is exact, while what msgspec returns has up to half as much to spare
        self._members = msgspec.json.encode(kept)[:-1]

    @property
    def kept_bytes(self) -> int:
        return len(self._members)

    def budget(self, given_tokens: int) -> int | None:
        """Return the tokens that the answer may still have; None for the rest of the context."""
        return None if self._limit is None else self._limit[1] - given_tokens

    def of(self, ids: array[int], given_tokens: int) -> bytes:
        """Return the body for `ids`, P + G, of which the last `given_tokens` are the answer's."""
        added: dict[str, Any] = {"return_token_ids": True}
        if self._chat:
            calls = {"role": "assistant", "content": None, "tool_calls": [_CALL] * self._calls}
            added["messages"] = [calls] if self._calls else []
            added["kv_transfer_params"] = {"prompt_token_ids": ids.tolist()}
        else:
            added["prompt"] = ids.tolist()
        if self._limit is not None:
            added[self._limit[0]] = self._limit[1] - given_tokens
        if self._least:
            added["min_tokens"] = max(0, self._least - given_tokens)
        comma = b"," if len(self._members) > len(b"{") else b""
        return b"%b%b%b" % (self._members, comma, msgspec.json.encode(added)[1:])


def _limit(fields: TrackedFields, *, chat: bool) -> tuple[str, int] | None:
    if chat and (most := as_int(fields.max_completion_tokens)) is not None:
        return "max_completion_tokens", most
    if (most := as_int(fields.max_tokens)) is not None:
        return "max_tokens", most
    return None if chat else ("max_tokens", COMPLETION_TOKENS)


def _calls_in(messages: bytes) -> int:
    """Return how many tool calls the messages have."""
    try:
        read = _CALLS.decode(messages) if b'"tool_calls"' in messages else []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
    return sum(len(one.tool_calls or ()) for one in read if one.role == "assistant")
