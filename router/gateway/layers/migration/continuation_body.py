"""The request that another worker gets: the client's own, with P + G as its prompt and what is left of its budget."""

from __future__ import annotations

from array import array
from typing import Final

import msgspec

from backends.foreign_json import json_decoder
from router.gateway.layers.migration.request_fields import TrackedFields
from router.tokenization.body.parsed_body import CHAT_PATH, as_int

COMPLETION_TOKENS: Final = 16
"""vLLM's limit of a completion that gives none."""
_RENDERING: Final = ("add_generation_prompt", "continue_final_message", "documents", "chat_template", "prompt")
"""What matters only to a prompt that is rendered. vLLM takes no messages into account beside ids."""
_MEMBERS: Final = json_decoder(dict[str, msgspec.Raw])


class ContinuationBody:
    """Keeps what is needed of a request once its answer has begun; the messages only beside tools.

    Parsers of tool calls number the calls by the messages.
    """

    __slots__ = ("_chat", "_fields", "_members")

    def __init__(self, path: str, body: bytes, fields: TrackedFields) -> None:
        self._chat = path == CHAT_PATH
        self._fields = fields
        dropped = _RENDERING if bytes(fields.tools) else (*_RENDERING, "messages")
        members = _MEMBERS.decode(body)
        # copies, because a Raw keeps the whole body
        self._members = {name: bytes(value) for name, value in members.items() if name not in dropped}
        fields.messages = fields.prompt = fields.tools = msgspec.Raw()

    def budget(self, given_tokens: int) -> int | None:
        """Return the tokens that the answer may still have; None for the rest of the context."""
        limit = self._limit()
        return None if limit is None else limit[1] - given_tokens

    def _limit(self) -> tuple[str, int] | None:
        fields = self._fields
        if self._chat and (most := as_int(fields.max_completion_tokens)) is not None:
            return "max_completion_tokens", most
        if (most := as_int(fields.max_tokens)) is not None:
            return "max_tokens", most
        return None if self._chat else ("max_tokens", COMPLETION_TOKENS)

    def of(self, ids: array[int], given_tokens: int) -> bytes:
        """Return the body for `ids`, P + G, of which the last `given_tokens` are the answer's."""
        members: dict[str, object] = {name: msgspec.Raw(value) for name, value in self._members.items()}
        if self._chat:
            members.setdefault("messages", [])
            members["kv_transfer_params"] = {"prompt_token_ids": ids.tolist()}
        else:
            members["prompt"] = ids.tolist()
        limit = self._limit()
        if limit is not None:
            members[limit[0]] = limit[1] - given_tokens
        least = as_int(self._fields.min_tokens)
        if least:
            members["min_tokens"] = max(0, least - given_tokens)
        members["return_token_ids"] = True
        return msgspec.json.encode(members)
