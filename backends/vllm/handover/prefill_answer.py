"""Read the answer of a prefill request."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from backends.foreign_json import json_decoder
from backends.vllm.handover.parameters import HandoverError, is_count, is_token_ids

MAX_ANSWER_BYTES = 16_777_216
"""A longer answer is no answer of one token. Token ids and block ids of a million tokens take about 8 MB."""
_SLACK_BYTES = 1 << 20
"""What an answer may have beside the ids of the request's text: ids of images, and other fields."""
_BYTES_PER_BYTE = 10
"""JSON of a token id and its part of a block id, for a token of one byte."""


class PrefillAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer of one token says: its end, the transfer parameters as they came, and the prompt.

    Counts and ids that the worker did not report, or not in a usable form, are None. So are ids of another number than
    the prompt's tokens.
    """

    finish_reason: str | None
    params: Any = None
    prompt_token_ids: list[int] | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


class _OnlyChoice(msgspec.Struct):
    finish_reason: Any = None
    prompt_token_ids: Any = None


class _ReportedDetails(msgspec.Struct):
    cached_tokens: Any = None


class _PromptUsage(msgspec.Struct):
    prompt_tokens: Any = None
    prompt_tokens_details: _ReportedDetails | None = None


class _OneTokenBody(msgspec.Struct):
    choices: list[_OnlyChoice]
    kv_transfer_params: Any = None
    prompt_token_ids: Any = None
    usage: _PromptUsage | None = None


class _MessageUsage(msgspec.Struct):
    input_tokens: Any = None
    cache_read_input_tokens: Any = 0
    cache_creation_input_tokens: Any = 0


class _Message(msgspec.Struct):
    type: Literal["message"]
    stop_reason: Any = None
    usage: _MessageUsage | None = None
    kv_transfer_params: Any = None


class _Incomplete(msgspec.Struct):
    reason: Any = None


class _InputMessage(msgspec.Struct):
    tokens: Any = None


class _ResponseUsage(msgspec.Struct):
    input_tokens: Any = None
    input_tokens_details: _ReportedDetails | None = None


class _Response(msgspec.Struct):
    object: Literal["response"]
    status: Any = None
    incomplete_details: _Incomplete | None = None
    input_messages: list[_InputMessage] | None = None
    usage: _ResponseUsage | None = None
    kv_transfer_params: Any = None


_COMPLETION = json_decoder(_OneTokenBody)
_MESSAGE = json_decoder(_Message)
_RESPONSE = json_decoder(_Response)
_ENDS = {"max_tokens": "length", "end_turn": "stop", "stop_sequence": "stop", "tool_use": "stop"}
"""A message's stop reasons, as a completion's."""
Body = TypeVar("Body")


def _decoded(decoder: msgspec.json.Decoder[Body], body: bytes, kind: str) -> Body:
    if len(body) > MAX_ANSWER_BYTES:
        raise HandoverError(f"the prefill's answer is longer than {MAX_ANSWER_BYTES} bytes")
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HandoverError(f"the prefill's answer is not a {kind}") from None


def answer_limit_bytes(request_bytes: int) -> int:
    return min(MAX_ANSWER_BYTES, _BYTES_PER_BYTE * request_bytes + _SLACK_BYTES)


def read_prefill_answer(body: bytes) -> PrefillAnswer:
    """Return the parts of a chat completion or completion.

    Raises:
        HandoverError: the body is too long, is another document, or has several choices.
    """
    found = _decoded(_COMPLETION, body, "completion")
    if len(found.choices) != 1:
        raise HandoverError(f"the prefill's answer has {len(found.choices)} choices")
    (choice,), usage = found.choices, found.usage or _PromptUsage()
    details = usage.prompt_tokens_details or _ReportedDetails()
    ids = choice.prompt_token_ids if found.prompt_token_ids is None else found.prompt_token_ids
    return PrefillAnswer(
        finish_reason=choice.finish_reason if isinstance(choice.finish_reason, str) else None,
        params=found.kv_transfer_params,
        prompt_token_ids=_ids_of(ids, usage.prompt_tokens),
        prompt_tokens=_count(usage.prompt_tokens),
        cached_tokens=_count(details.cached_tokens),
    )


def read_message_answer(body: bytes) -> PrefillAnswer:
    """Return the parts of a message. It has no token ids, and counts cached and written tokens beside the others.

    Raises:
        HandoverError: the body is too long, or is another document.
    """
    found = _decoded(_MESSAGE, body, "message")
    usage = found.usage or _MessageUsage()
    counts = [usage.input_tokens, usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0]
    return PrefillAnswer(
        finish_reason=_ENDS.get(found.stop_reason) if isinstance(found.stop_reason, str) else None,
        params=found.kv_transfer_params,
        prompt_tokens=sum(counts) if all(map(is_count, counts)) else None,
        cached_tokens=_count(usage.cache_read_input_tokens),
    )


def read_response_answer(body: bytes) -> PrefillAnswer:
    """Return the parts of a response. Its only input message has the token ids, unless vLLM renders with Harmony.

    Raises:
        HandoverError: the body is too long, or is another document.
    """
    found = _decoded(_RESPONSE, body, "response")
    usage = found.usage or _ResponseUsage()
    details, messages = usage.input_tokens_details or _ReportedDetails(), found.input_messages or []
    cut = found.status == "incomplete" and found.incomplete_details is not None
    return PrefillAnswer(
        finish_reason="length" if cut else "stop" if found.status == "completed" else None,
        params=found.kv_transfer_params,
        prompt_token_ids=_ids_of(messages[0].tokens, usage.input_tokens) if len(messages) == 1 else None,
        prompt_tokens=_count(usage.input_tokens),
        cached_tokens=_count(details.cached_tokens),
    )


def _ids_of(ids: Any, tokens: Any) -> list[int] | None:
    return ids if is_token_ids(ids) and tokens in (None, len(ids)) else None


def _count(value: Any) -> int | None:
    return value if is_count(value) else None
