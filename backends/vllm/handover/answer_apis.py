"""The APIs whose requests two workers may share, as far as the bodies of a handover differ between them.

All four read and return ``kv_transfer_params`` in vLLM 0.32 and 0.33.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from backends.foreign_json import read_json
from backends.vllm.handover.parameters import HandoverError
from backends.vllm.handover.prefill_answer import (
    PrefillAnswer,
    read_message_answer,
    read_prefill_answer,
    read_response_answer,
)

Members: TypeAlias = dict[str, msgspec.Raw]
"""The outermost members of a body. Values are the client's bytes."""
TRUE, FALSE, ONE_TOKEN = msgspec.Raw(b"true"), msgspec.Raw(b"false"), msgspec.Raw(b"1")
_NULL: Final = msgspec.Raw(b"null")
_NOTHING: Final = (b"null", b"false", b"0")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerApi:
    """One API. `limit` is the member that limits the answer, and `added` what the prefill request gets beside it.

    Without `ignores_end` a prefill cannot be made to end by its length. With `thinks` the worker refuses a prefill
    whose thinking has a budget, unless its transfer parameters say that it is one. Without `takes_request_id` the
    worker makes the request's id itself, or takes it from the body, where it would be the answer's id, too.
    """

    limit: str
    other_limits: tuple[str, ...] = ()
    added: Mapping[str, msgspec.Raw] = field(default_factory=dict)
    ignores_end: bool = True
    thinks: bool = False
    takes_request_id: bool = True
    check: Callable[[Members], None]
    """Raises `HandoverError` for a feature that needs one worker."""
    read: Callable[[bytes], PrefillAnswer]
    """Reads the prefill's answer; raises `HandoverError`."""


def _value(members: Members, name: str) -> bytes:
    return bytes(members.get(name, _NULL))


def refuse_given(members: Members, *names: str) -> None:
    """Raises `HandoverError` if one of `names` is given and not null, false or 0."""
    for name in names:
        if _value(members, name) not in _NOTHING:
            raise HandoverError(f"the request has {name}")


def _check_completion(members: Members) -> None:
    refuse_given(members, "prompt_embeds", "use_beam_search", "echo")
    if _value(members, "prompt_logprobs") != b"null":
        raise HandoverError("the request has prompt_logprobs")
    for name in ("n", "best_of"):
        if _value(members, name) not in (b"1", b"null"):
            raise HandoverError(f"{name} is not 1")
    _check_tool_choice(members)
    prompt = _value(members, "prompt")
    if prompt[:1] == b"[" and not prompt[1:].lstrip(b" \t\r\n")[:1].isdigit():
        raise HandoverError("the request has several prompts")


def _check_tool_choice(members: Members) -> None:
    choice = _value(members, "tool_choice")
    if choice.startswith(b"{") or choice == b'"required"':
        raise HandoverError("tool_choice demands a tool call, which an answer of one token cannot be")


class _ToolChoice(msgspec.Struct):
    type: Any = None


def _check_message(members: Members) -> None:
    choice = _read(members, "tool_choice", _ToolChoice | None)
    if choice is not None and choice.type not in ("auto", "none"):
        raise HandoverError("tool_choice demands a tool call, which an answer of one token cannot be")


def _check_response(members: Members) -> None:
    """Check for what the worker does itself: it stores responses, runs tools in rounds, and cuts off long prompts."""
    refuse_given(members, "background", "previous_response_id")
    _check_tool_choice(members)
    tools = _read(members, "tools", list[_ToolChoice] | None)
    if any(tool.type != "function" for tool in tools or ()):
        raise HandoverError("the worker runs a tool, and the rounds after the first have no KV cache to receive")
    if _value(members, "truncation") != b'"disabled"' and "truncation" in members:
        raise HandoverError("truncation cuts the prompt by the length of the answer")


def _read(members: Members, name: str, type_: Any) -> Any:
    try:
        return read_json(members.get(name, _NULL), type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HandoverError(f"{name} has another form") from None


COMPLETIONS: Final = AnswerApi(
    limit="max_tokens",
    other_limits=("max_completion_tokens",),
    added={"return_token_ids": TRUE},
    check=_check_completion,
    read=read_prefill_answer,
)
"""Chats and completions."""
MESSAGES: Final = AnswerApi(
    limit="max_tokens", ignores_end=False, thinks=True, check=_check_message, read=read_message_answer
)
RESPONSES: Final = AnswerApi(
    limit="max_output_tokens",
    takes_request_id=False,
    added={"store": FALSE, "enable_response_messages": TRUE},
    check=_check_response,
    read=read_response_answer,
)
ANSWER_APIS: Final[dict[str, AnswerApi]] = {
    "/v1/chat/completions": COMPLETIONS,
    "/v1/completions": COMPLETIONS,
    "/v1/messages": MESSAGES,
    "/v1/responses": RESPONSES,
}
