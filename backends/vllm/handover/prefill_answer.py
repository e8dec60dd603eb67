"""Read the answer of a prefill request."""

from __future__ import annotations

from typing import Any

import msgspec

from backends.vllm.handover.parameters import HandoverError, is_count, is_token_ids

MAX_ANSWER_BYTES = 16_777_216
"""A longer answer is no answer of one token. Token ids and block ids of a million tokens take about 8 MB."""


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


_DECODER = msgspec.json.Decoder(_OneTokenBody)


def read_prefill_answer(body: bytes) -> PrefillAnswer:
    """Return the parts of a chat completion or completion.

    Raises:
        HandoverError: the body is too long, is another document, or has several choices.
    """
    if len(body) > MAX_ANSWER_BYTES:
        raise HandoverError(f"the prefill's answer is longer than {MAX_ANSWER_BYTES} bytes")
    try:
        found = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HandoverError("the prefill's answer is not a completion") from None
    if len(found.choices) != 1:
        raise HandoverError(f"the prefill's answer has {len(found.choices)} choices")
    (choice,), usage = found.choices, found.usage or _PromptUsage()
    details = usage.prompt_tokens_details or _ReportedDetails()
    ids = choice.prompt_token_ids if found.prompt_token_ids is None else found.prompt_token_ids
    return PrefillAnswer(
        finish_reason=choice.finish_reason if isinstance(choice.finish_reason, str) else None,
        params=found.kv_transfer_params,
        prompt_token_ids=ids if is_token_ids(ids) and usage.prompt_tokens in (None, len(ids)) else None,
        prompt_tokens=_count(usage.prompt_tokens),
        cached_tokens=_count(details.cached_tokens),
    )


def _count(value: Any) -> int | None:
    return value if is_count(value) else None
