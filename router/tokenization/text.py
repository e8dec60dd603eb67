"""Identity without token ids: one canonical text per body, and the learned bytes per token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from xxhash import xxh3_64_hexdigest

from router.residency.prompt import Prompt, PromptSource
from router.tokenization.body.fields import BodyFields
from router.tokenization.body.parsed_body import MESSAGES_PATH, RESPONSES_PATH
from router.tokenization.hashing import CacheKeys
from router.tokenization.local.chains import TEXT_BYTES_PER_TOKEN, TextChain

MEDIA_REPEATS = 256
"""Repetitions of the digest that stand for a picture, sound or film: 4 KiB, about 1,000 tokens."""
MAX_MODELS = 1_000

_TEXT_PARTS = ("text", "refusal", "thinking")
_OBJECT_PARTS = frozenset({"tool_use", "tool_reference", "redacted_thinking"})
"""Blocks that are put into the prompt unchanged."""


class TextPrompt(Prompt):
    """A prompt known by its text only; `text_bytes` is the length of the text."""

    __slots__ = ("text_bytes", "text_chain")

    def __init__(self, data: bytes, tokens: int, keys: CacheKeys, *, multiple: bool) -> None:
        self.text_chain = TextChain(data, tokens, keys)
        self.text_bytes = len(data)
        super().__init__(tokens, PromptSource.TEXT, self.text_chain, multiple=multiple)


class TokenLengths:
    """UTF-8 bytes per token by model, learned from reported prompt tokens."""

    _WEIGHT = 0.1

    def __init__(self) -> None:
        self._learned: dict[str, float] = {}

    def of(self, model: str | None) -> float:
        """Return the bytes per token; 4 if nothing was learned."""
        return self._learned.get(model or "", float(TEXT_BYTES_PER_TOKEN))

    def observe(self, model: str, text_bytes: int, prompt_tokens: int) -> None:
        if text_bytes <= 0 or prompt_tokens <= 0 or (model not in self._learned and len(self._learned) >= MAX_MODELS):
            return
        seen = min(16.0, max(0.5, text_bytes / prompt_tokens))
        self._learned[model] = self.of(model) + self._WEIGHT * (seen - self.of(model))

    def statistics(self) -> dict[str, float]:
        return dict(self._learned)


def canonical_text(path: str, fields: BodyFields) -> bytes:
    """Return one text per conversation, which only grows at its end when messages are added. Key order does not matter.

    Empty if the body contains only a part of the conversation: its common prefix with others is not known.
    """
    if fields.previous_response_id is not None and path == RESPONSES_PATH:
        return b""
    parts: list[bytes] = []
    if fields.tools:
        parts += [b"tools\x1f", _canonical_json(fields.tools), b"\x1e"]
    first = {RESPONSES_PATH: fields.instructions, MESSAGES_PATH: fields.system}.get(path)
    if first:
        parts.append(_message({"role": "system", "content": first}))
    turns = fields.input if path == RESPONSES_PATH else fields.messages
    parts += map(_message, [{"role": "user", "content": turns}] if isinstance(turns, str) else turns or ())
    return b"".join(parts)


def _message(message: object) -> bytes:
    if not isinstance(message, Mapping):
        return _canonical_json(message) + b"\x1e"
    rest = {key: value for key, value in message.items() if key not in ("role", "content") and value is not None}
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    body = b"\n".join(_part(part) for part in parts if part is not None)
    tail = b"\x1f" + _canonical_json(rest) if rest else b""
    return _utf8(str(message.get("role"))) + b"\x1f" + body + tail + b"\x1e"


def _part(part: object) -> bytes:
    if isinstance(part, str):
        return _utf8(part)
    if isinstance(part, Mapping):
        for field in _TEXT_PARTS:
            if isinstance(part.get(field), str):
                return _utf8(part[field])
        if part.get("type") == "tool_result":
            return _message({"role": "tool", "content": part.get("content")})
        if part.get("type") in _OBJECT_PARTS:
            return _canonical_json(part)
    return xxh3_64_hexdigest(_canonical_json(part)).encode() * MEDIA_REPEATS


def _canonical_json(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
