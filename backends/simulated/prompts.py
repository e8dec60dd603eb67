"""Text to token ids for the worker's paths. A body that cannot be rendered becomes vLLM's 400."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

from backends.simulated.errors import ApiError
from backends.simulated.settings import shipped_model_dir
from backends.vllm.render import ChatRenderer, Unrenderable

# Tokenising a text of this size takes about as long as one decode step; a longer one would delay every stream.
_OFF_LOOP_CHARS = 20_000


@cache
def _shipped() -> ChatRenderer:
    """Shared by all workers of a process: `tokenizers` never frees what a tokenizer has cached."""
    return ChatRenderer.load(shipped_model_dir())


class UnknownToken(ApiError):
    """400: a token id outside the vocabulary."""


class PromptReader:
    """The model folder's template and tokenizer; long texts are tokenised in a thread."""

    def __init__(self, folder: Path, chat_template: str | None) -> None:
        shipped = chat_template is None and folder == shipped_model_dir()
        self._renderer = _shipped() if shipped else ChatRenderer.load(folder, chat_template)
        self.tokenizer = self._renderer.tokenizer
        self.closed = False
        """Whether texts are refused, because the thread pool that tokenises them has been shut down."""
        self.eos_id = self._renderer.eos_id
        self._vocabulary_size: int = self.tokenizer.get_vocab_size()

    async def chat(self, body: Mapping[str, Any], add_special_tokens: bool = False) -> list[int]:
        """Return the ids of a chat body; raises `ApiError` 400."""
        if body.get("chat_template") is not None:
            raise ApiError("Chat templates in requests are not trusted here.", param="chat_template")
        if body.get("truncate_prompt_tokens") is not None:
            raise ApiError("This simulated worker does not truncate prompts.", param="truncate_prompt_tokens")
        return await self._rendered(self._renderer.render, body, add_special_tokens, "messages")

    async def messages(self, body: Mapping[str, Any]) -> list[int]:
        """Return the ids of an Anthropic Messages body; raises `ApiError` 400."""
        return await self._rendered(self._renderer.render_messages, body, False, "messages")

    async def responses(self, body: Mapping[str, Any]) -> list[int]:
        """Return the ids of an OpenAI Responses body; raises `ApiError` 400."""
        return await self._rendered(self._renderer.render_responses, body, True, "input")

    async def _rendered(
        self, render: Callable[[Mapping[str, Any]], str], body: Mapping[str, Any], add_special_tokens: bool, param: str
    ) -> list[int]:
        try:
            text = render(body)
        except Unrenderable as error:
            raise ApiError(f"The {param} cannot be rendered: {error.reason}.", param=param) from None
        return await self.text(text, add_special_tokens, param)

    async def text(self, text: str, add_special_tokens: bool = True, param: str = "prompt") -> list[int]:
        """Return the ids of plain text; raises `ApiError` 400, or 500 if it is `closed`."""
        if self.closed:
            raise ApiError("cannot schedule new futures after shutdown", status=HTTPStatus.INTERNAL_SERVER_ERROR)
        try:
            if len(text) < _OFF_LOOP_CHARS:
                return self._renderer.encode(text, add_special_tokens)
            return await asyncio.to_thread(self._renderer.encode, text, add_special_tokens)
        except Unrenderable as error:
            raise ApiError(f"The text cannot be tokenised: {error.reason}.", param=param) from None

    def ids(self, ids: list[int], param: str = "prompt") -> list[int]:
        """Return `ids` unchanged; raises `UnknownToken` for an id outside the vocabulary."""
        if ids and max(ids) >= self._vocabulary_size:
            raise UnknownToken(f"Token id {max(ids)} is out of vocabulary", param=param)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._renderer.decode(ids)

    def strings(self, ids: Sequence[int]) -> list[str]:
        return [self.tokenizer.id_to_token(id_) for id_ in ids]
