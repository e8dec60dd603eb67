"""Make the bodies of both requests from the client's.

Only the outermost members are taken apart; their values stay the client's bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from backends.foreign_json import json_decoder
from backends.vllm.handover.answer_apis import FALSE, ONE_TOKEN, TRUE, AnswerApi, Members, refuse_given
from backends.vllm.handover.connector import Connector
from backends.vllm.handover.parameters import HandoverError, TransferParams

_DECODER: Final = json_decoder(Members)
_DROPPED: Final = frozenset(
    {
        "stream_options", "min_tokens", "stop", "stop_sequences", "stop_token_ids", "logprobs", "top_logprobs",
        "stream_interval",
    }
)  # fmt: skip
"""Members that the prefill request must not have: no stream, no end before its only token, and no use of it."""


def outermost(body: bytes, api: AnswerApi) -> Members:
    """Return the outermost members of a request that may get transfer parameters.

    Raises:
        HandoverError: the body is not a JSON object, has parameters, or uses a feature that needs one plain request.
    """
    try:
        members = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HandoverError("the body is not a plain JSON object") from None
    refuse_given(members, "kv_transfer_params", "ec_transfer_params")
    api.check(members)
    return members


def split(body: bytes, api: AnswerApi, connector: Connector) -> Members:
    """Return the outermost members of a request that two workers may share.

    Raises:
        HandoverError: as `outermost`, or the connector does not allow it.
    """
    members = outermost(body, api)
    if connector.ends_by_length and not api.ignores_end:
        raise HandoverError("this API has no way to end a prefill by its length")
    if api.thinks and not connector.marks_prefill and bytes(members.get("thinking", b"null")) != b"null":
        raise HandoverError("the request has thinking, and its prefill carries no parameters")
    if connector.same_request_id and not api.takes_request_id:
        raise HandoverError("this API takes no id from X-Request-Id, by which the two workers pair their requests")
    return members


def prefill_body(members: Members, params: TransferParams | None, api: AnswerApi, *, ends_by_length: bool) -> bytes:
    """Return the body of the prefill request: one token, in one piece, with the prompt's token ids in its answer.

    What decides the prompt, and so its blocks, stays as it is: messages, tools, template arguments, model and salt.
    """
    made = {name: value for name, value in members.items() if name not in _DROPPED}
    made["stream"] = FALSE
    made[api.limit] = ONE_TOKEN
    made.update(api.added)
    made.update((name, ONE_TOKEN) for name in api.other_limits if name in made)
    if ends_by_length:
        made["ignore_eos"] = TRUE
    return _with_params(made, params)


def decode_body(members: Members, params: TransferParams | None) -> bytes:
    return _with_params(members, params)


def with_params(body: bytes, params: TransferParams) -> bytes:
    """Return a body that `outermost` accepts with transfer parameters; all else stays as it is, byte for byte.

    They come last, because the body may have `null` in their place, and of two members the last one counts.
    """
    return b'%b,"kv_transfer_params":%b}' % (body.rstrip()[:-1], msgspec.json.encode(params))


def _with_params(members: Members, params: TransferParams | None) -> bytes:
    if params is not None:
        members = {**members, "kv_transfer_params": msgspec.Raw(msgspec.json.encode(params))}
    return msgspec.json.encode(members)
