"""/v1/messages and /v1/responses in plain text, as far as the end-to-end tests use them.

Tools and thinking may be in a prompt, but an answer is one text. Events have vLLM's timing: a
Messages stream starts with the first token, and a Responses stream sends its first events before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from backends.engine.request import FinishReason
from backends.simulated.errors import ApiError
from backends.simulated.frames import AnswerHead
from backends.simulated.generation import Generation
from backends.simulated.prompts import PromptReader
from backends.simulated.request import ChatBody, read_body

_encode = msgspec.json.encode
_STOP_REASONS: dict[FinishReason | None, str] = {FinishReason.LENGTH: "max_tokens", FinishReason.STOP: "end_turn"}
"""None for an aborted answer, as in vLLM, which calls its response "completed" as well."""
_SHARED = ("model", "stream", "cache_salt", "vllm_xargs", "kv_transfer_params")
"""Fields that both APIs share with chats."""


class MessagesDialect:
    """Anthropic's Messages API. `read` and `prompt` raise `ApiError` 400."""

    id_prefix = "chatcmpl-"

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens

    def read(self, values: dict[str, Any]) -> ChatBody:
        if values.get("max_tokens") is None:
            raise ApiError("max_tokens is missing.", param="max_tokens")
        passed = _fields(values, "messages", "max_tokens", *_SHARED)
        return read_body(ChatBody, passed)

    async def prompt(self, reader: PromptReader, values: dict[str, Any]) -> list[int]:
        return await reader.messages(values)

    def whole(
        self, head: AnswerHead, generation: Generation, cached_tokens: int, prompt: Sequence[int] | None
    ) -> dict[str, Any]:
        content = [{"type": "text", "text": "".join(generation.text_parts)}]
        return {**self._message(head, content), **_stop(generation), "usage": self._usage(generation, cached_tokens)}

    def introduction(self, head: AnswerHead) -> bytes:
        return b""

    def opening(self, head: AnswerHead, generation: Generation) -> bytes:
        # As in vLLM, the first event does not report the cache yet.
        usage = {"input_tokens": generation.state.prompt_tokens, "output_tokens": 0}
        message = {**self._message(head, []), "stop_reason": None, "stop_sequence": None, "usage": usage}
        block = {"type": "text", "text": ""}
        return _event("message_start", message=message) + _event("content_block_start", index=0, content_block=block)

    def token(self, json_text: bytes) -> bytes:
        """Return the event of one token; `json_text` is its text as the inside of a JSON string."""
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
            b'"delta":{"type":"text_delta","text":"' + json_text + b'"}}\n\n'
        )

    def closing(self, head: AnswerHead, generation: Generation, cached_tokens: int) -> bytes:
        stop = _event("message_delta", delta=_stop(generation), usage=self._usage(generation, cached_tokens))
        return _event("content_block_stop", index=0) + stop + _event("message_stop")

    def failed(self, error: ApiError) -> bytes:
        """Return the event that ends a stream whose engine died."""
        return _event("error", error={"type": "internal_error", "message": error.message})

    def _message(self, head: AnswerHead, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": head.id, "type": "message", "role": "assistant", "content": content, "model": head.model}

    def _usage(self, generation: Generation, cached_tokens: int) -> dict[str, int]:
        read, written = cached_tokens, _written(generation, cached_tokens, self._block_tokens)
        return {
            "input_tokens": generation.state.prompt_tokens - read - written,
            "output_tokens": len(generation.token_ids),
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": read,
        }


class ResponsesDialect:
    """OpenAI's Responses API, as `MessagesDialect`. Nothing is stored."""

    id_prefix = "resp_"

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens

    def read(self, values: dict[str, Any]) -> ChatBody:
        if values.get("previous_response_id") is not None or values.get("background"):
            raise ApiError("This simulated worker stores no responses.", param="previous_response_id")
        passed = _fields(values, "ignore_eos", *_SHARED)
        passed["return_token_ids"] = values.get("enable_response_messages")
        limit = values.get("max_output_tokens")
        return read_body(ChatBody, {**passed, "messages": [values], "max_completion_tokens": limit})

    async def prompt(self, reader: PromptReader, values: dict[str, Any]) -> list[int]:
        return await reader.responses(values)

    def whole(
        self, head: AnswerHead, generation: Generation, cached_tokens: int, prompt: Sequence[int] | None
    ) -> dict[str, Any]:
        answer = self._response(head, generation, cached_tokens)
        if prompt is not None:
            answer["input_messages"] = [{"type": "raw_message_tokens", "message": "", "tokens": list(prompt)}]
        return answer

    def introduction(self, head: AnswerHead) -> bytes:
        response = self._response(head, None)
        return _event("response.created", response=response) + _event("response.in_progress", response=response)

    def opening(self, head: AnswerHead, generation: Generation) -> bytes:
        place = {"item_id": self._item_id(head), "output_index": 0}
        item = {**self._item(head, None), "content": []}
        part = {"type": "output_text", "text": "", "annotations": []}
        return _event("response.output_item.added", output_index=0, item=item) + _event(
            "response.content_part.added", content_index=0, part=part, **place
        )

    def token(self, json_text: bytes) -> bytes:
        return (
            b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","output_index":0,'
            b'"content_index":0,"delta":"' + json_text + b'"}\n\n'
        )

    def closing(self, head: AnswerHead, generation: Generation, cached_tokens: int) -> bytes:
        response = self._response(head, generation, cached_tokens)
        done = _event("response.output_item.done", output_index=0, item=self._item(head, generation))
        return done + _event(f"response.{response['status']}", response=response)

    def failed(self, error: ApiError) -> bytes:
        """Return nothing: vLLM cuts the stream of an engine that died."""
        return b""

    def _response(self, head: AnswerHead, generation: Generation | None, cached_tokens: int = 0) -> dict[str, Any]:
        status = _status(generation)
        return {
            "id": head.id,
            "object": "response",
            "created_at": head.created,
            "model": head.model,
            "output": [self._item(head, generation)] if generation is not None else [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "usage": self._usage(generation, cached_tokens) if generation is not None else None,
        }

    def _item_id(self, head: AnswerHead) -> str:
        return head.id.replace("resp_", "msg_", 1)

    def _item(self, head: AnswerHead, generation: Generation | None) -> dict[str, Any]:
        text = "".join(generation.text_parts) if generation is not None else ""
        message = {"id": self._item_id(head), "type": "message", "role": "assistant", "status": _status(generation)}
        return {**message, "content": [{"type": "output_text", "text": text, "annotations": []}]}

    def _usage(self, generation: Generation, cached_tokens: int) -> dict[str, Any]:
        prompt, answer = generation.state.prompt_tokens, len(generation.token_ids)
        read, written = cached_tokens, _written(generation, cached_tokens, self._block_tokens)
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
            "output_tokens": answer,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + answer,
        }


def _stop(generation: Generation) -> dict[str, Any]:
    return {"stop_reason": _STOP_REASONS.get(generation.finish_reason), "stop_sequence": None}


def _status(generation: Generation | None) -> str:
    if generation is None:
        return "in_progress"
    return "incomplete" if generation.finish_reason is FinishReason.LENGTH else "completed"


def _fields(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _written(generation: Generation, cached_tokens: int, block_tokens: int) -> int:
    """Return the prompt tokens written to the cache. A prompt's last, partial block is not written."""
    return max(0, generation.state.prompt_tokens // block_tokens * block_tokens - cached_tokens)


def _event(name: str, **fields: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + _encode({"type": name, **fields}) + b"\n\n"
