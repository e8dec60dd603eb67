"""Responses as bytes. A streamed token costs one join of prepared halves; only rare frames are encoded from values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from backends.engine.request import EngineRequestState, FinishReason
from backends.simulated.generation import NO_TOKEN, Generation

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class ApiShape:
    """Differences between the two APIs: object names, and how a streamed choice wraps its text."""

    id_prefix: str
    whole_object: str
    chunk_object: str
    text_open: bytes
    text_close: bytes
    chat: bool


CHAT = ApiShape("chatcmpl-", "chat.completion", "chat.completion.chunk", b'"delta":{"content":"', b'"}', True)
COMPLETION = ApiShape("cmpl-", "text_completion", "text_completion", b'"text":"', b'"', False)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The fields that every body of one response starts with."""

    id: str
    created: int
    model: str

    def fields(self, object_name: str) -> dict[str, Any]:
        return {"id": self.id, "object": object_name, "created": self.created, "model": self.model}


def usage(generations: Sequence[Generation], cached_tokens: int | None) -> dict[str, Any]:
    """Return OpenAI's usage object; without details if `cached_tokens` is None."""
    prompt = sum(generation.state.prompt_tokens for generation in generations)
    completion = sum(len(generation.token_ids) for generation in generations)
    details = {"cached_tokens": cached_tokens} if cached_tokens is not None else None
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": details,
    }


class Frames:
    """The frames of one response, with vLLM's keys. Where a client asked for no ids, their keys hold null."""

    def __init__(self, shape: ApiShape, head: AnswerHead, *, with_ids: bool) -> None:
        self._shape = shape
        self._object = head.fields(shape.chunk_object)
        self._with_ids = with_ids
        self._head = b"data: " + _encode(self._object)[:-1] + b',"choices":['
        self._openings: dict[int, bytes] = {}
        self._middle = shape.text_close + (
            b',"logprobs":null,"finish_reason":null,"token_ids":'
            if shape.chat
            else b',"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":'
        )
        self._closing = (b"" if shape.chat else b',"weight_versions":null') + b'}],"kv_transfer_params":null}\n\n'

    def role(self, generation: Generation, prompt_ids: Sequence[int]) -> list[bytes]:
        """Return a chat stream's first frame, with the role and no text; a completion has none."""
        if not self._shape.chat:
            return []
        choice = {
            "index": generation.index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        ids = list(prompt_ids) if self._with_ids else None
        return [_frame({**self._object, "choices": [choice], "prompt_token_ids": ids, "prompt_text": None})]

    def token(self, index: int, text: str, token_id: int) -> bytes:
        opening = self._openings.get(index)
        if opening is None:
            opening = self._head + b'{"index":%d,' % index + self._shape.text_open
            self._openings[index] = opening
        ids = b"[%d]" % token_id if self._with_ids else b"null"
        return b"".join((opening, _encode(text)[1:-1], self._middle, ids, self._closing))

    def full(
        self,
        generation: Generation,
        text: str,
        token_ids: list[int],
        prompt_ids: Sequence[int] | None,
        params: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Return one frame with all fields: the first of a completion, or the last of an answer.

        `params` are the transfer parameters for another worker.
        """
        chat, ended = self._shape.chat, generation.finish_reason is not None
        choice: dict[str, Any] = {"index": generation.index}
        choice |= {"delta": {"content": text}} if chat else {"text": text}
        choice |= {"logprobs": None, "finish_reason": generation.finish_reason}
        if ended or not chat:
            choice["stop_reason"] = generation.stop_reason
        if not chat:
            choice["prompt_token_ids"] = list(prompt_ids) if self._with_ids and prompt_ids is not None else None
        choice["token_ids"] = token_ids if self._with_ids else None
        if ended or not chat:
            choice["weight_versions"] = None
        return _frame({**self._object, "choices": [choice], "kv_transfer_params": params})

    def usage(self, numbers: dict[str, Any]) -> bytes:
        return _frame({**self._object, "choices": [], "usage": numbers})


class Stream:
    """Turn the tokens of one streamed response into frames.

    `ended` counts finished prompts; `first` is the prompt that answered first.
    """

    def __init__(
        self,
        frames: Frames,
        prompts: Sequence[Sequence[int]],
        offered: Callable[[EngineRequestState], Mapping[str, Any] | None],
    ) -> None:
        """`offered` returns the transfer parameters for another worker at the end of an answer, if there are any."""
        self._frames = frames
        self._offered = offered
        self._prompts = prompts
        self.ended = 0
        self.first: Generation | None = None

    def frames(self, generation: Generation, token_id: int, reason: FinishReason | None) -> list[bytes]:
        """Return the frames of one delivery, usually one."""
        if generation.finish_reason is not None:
            return []
        opens = not generation.token_ids
        out = self.opening(generation) if opens else []
        shown = generation.take(token_id, reason)
        if generation.finish_reason is None and not opens:
            return [self._frames.token(generation.index, shown, token_id)]
        return [*out, self._spelled(generation, shown, token_id, opens=opens)]

    def opening(self, generation: Generation) -> list[bytes]:
        """Return what comes before the first token of an answer."""
        self.first = self.first or generation
        return self._frames.role(generation, self._prompts[generation.index])

    def _spelled(self, generation: Generation, shown: str, token_id: int, *, opens: bool) -> bytes:
        params = None
        if generation.finish_reason is not None:
            self.ended += 1
            params = self._offered(generation.state)
        prompt_ids = self._prompts[generation.index] if opens else None
        token_ids = [token_id] if token_id != NO_TOKEN else []
        return self._frames.full(generation, shown, token_ids, prompt_ids, params)


def _frame(value: dict[str, Any]) -> bytes:
    return b"data: " + _encode(value) + b"\n\n"


def whole_body(
    shape: ApiShape,
    head: AnswerHead,
    generations: Sequence[Generation],
    numbers: dict[str, Any],
    prompts: Sequence[Sequence[int]] | None,
    params: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the JSON body of a response that was not streamed; `prompts` if token ids are requested.

    `params` are the transfer parameters for another worker.
    """
    body = head.fields(shape.whole_object)
    body["choices"] = [_choice(shape, generation, prompts) for generation in generations]
    body["usage"] = numbers
    if shape.chat:
        body["prompt_token_ids"] = list(prompts[0]) if prompts is not None else None
    if params is not None:
        body["kv_transfer_params"] = params
    return _encode(body)


def _choice(shape: ApiShape, generation: Generation, prompts: Sequence[Sequence[int]] | None) -> dict[str, Any]:
    text = "".join(generation.text_parts)
    choice: dict[str, Any] = {"index": generation.index}
    if shape.chat:
        choice["message"] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
    else:
        choice["text"] = text
    choice["logprobs"] = None
    choice["finish_reason"] = generation.finish_reason
    choice["stop_reason"] = generation.stop_reason
    choice["token_ids"] = generation.token_ids if prompts is not None else None
    if not shape.chat:
        choice["prompt_token_ids"] = list(prompts[generation.index]) if prompts is not None else None
    return choice
