"""Make the bodies of both requests from the client's.

Only the outermost members are taken apart; their values stay the client's bytes.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from backends.vllm.handover.parameters import HandoverError, TransferParams

Members: TypeAlias = dict[str, msgspec.Raw]

_DECODER: Final = msgspec.json.Decoder(Members)
_DROPPED: Final = (
    "stream_options", "min_tokens", "stop", "stop_token_ids", "logprobs", "top_logprobs", "stream_interval",
)  # fmt: skip
"""Members that the prefill request must not have: no stream, no end before its only token, and no use of it."""
_ALONE: Final = ("kv_transfer_params", "ec_transfer_params", "prompt_embeds", "use_beam_search", "echo")
"""Members with which a request is computed on one worker, unless they are null, false or 0."""
_ONE: Final = ("n", "best_of")
_NOTHING: Final = (b"null", b"false", b"0")
_TRUE, _FALSE, _ONE_TOKEN = msgspec.Raw(b"true"), msgspec.Raw(b"false"), msgspec.Raw(b"1")


def split(body: bytes) -> Members:
    """Return the outermost members of a request that two workers may share.

    Raises:
        HandoverError: the body is not a JSON object, or uses a feature that needs one worker.
    """
    try:
        members = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HandoverError("the body is not a plain JSON object") from None
    for name in _ALONE:
        if bytes(members.get(name, b"null")) not in _NOTHING:
            raise HandoverError(f"the request has {name}")
    if bytes(members.get("prompt_logprobs", b"null")) != b"null":
        raise HandoverError("the request has prompt_logprobs")
    for name in _ONE:
        if bytes(members.get(name, b"1")) not in (b"1", b"null"):
            raise HandoverError(f"{name} is not 1")
    choice = bytes(members.get("tool_choice", b"null"))
    if choice.startswith(b"{") or choice == b'"required"':
        raise HandoverError("tool_choice demands a tool call, which an answer of one token cannot be")
    if bytes(members.get("prompt", b'""'))[:1] == b"[" and _several_prompts(bytes(members["prompt"])):
        raise HandoverError("the request has several prompts")
    return members


def _several_prompts(prompt: bytes) -> bool:
    """Return whether a JSON list is no list of token ids."""
    first = prompt[1:].lstrip(b" \t\r\n")[:1]
    return not first.isdigit()


def prefill_body(members: Members, params: TransferParams | None, *, ends_by_length: bool) -> bytes:
    """Return the body of the prefill request: one token, in one piece, with the prompt's token ids in its answer.

    What decides the prompt, and so its blocks, stays as it is: messages, tools, template arguments, model and salt.
    """
    made = {name: value for name, value in members.items() if name not in _DROPPED}
    made["stream"] = _FALSE
    made["max_tokens"] = _ONE_TOKEN
    if "max_completion_tokens" in made:
        made["max_completion_tokens"] = _ONE_TOKEN
    made["return_token_ids"] = _TRUE
    if ends_by_length:
        made["ignore_eos"] = _TRUE
    return _with_params(made, params)


def decode_body(members: Members, params: TransferParams | None) -> bytes:
    """Return the client's body with transfer parameters."""
    return _with_params(members, params)


def _with_params(members: Members, params: TransferParams | None) -> bytes:
    if params is not None:
        members = {**members, "kv_transfer_params": msgspec.Raw(msgspec.json.encode(params))}
    return msgspec.json.encode(members)
