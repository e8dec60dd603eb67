"""The blocks of an answer that a decode worker keeps for the prefill of the next turn (``bidirectional_kv_xfer``).

vLLM's prefill worker reads as many of them as it lacks. It compares no token ids, and takes the blocks from the end of
the list. So a prompt must begin with exactly the tokens whose keys and values the blocks hold, and the list must be
whole.
"""

from __future__ import annotations

from array import array
from typing import Final

import msgspec

from backends.foreign_json import json_decoder
from backends.vllm.handover import parameters
from backends.vllm.handover.answer_apis import TRUE, Members
from backends.vllm.handover.nixl_pull import NixlPull
from backends.vllm.handover.parameters import HandoverError, TransferParams

_CHECKS: Final[parameters.Checks] = {
    **NixlPull.checks,
    "do_remote_prefill": lambda value: value is False,
    "do_remote_decode": lambda value: value is True,
    "remote_num_tokens": parameters.is_positive,
}
_IDS: Final = json_decoder(list[int])


def given_ids(members: Members) -> array[int] | None:
    """Return the token ids that a completion gives as its prompt; None if it gives a text, or has them cut off.

    A worker computes exactly these. What it makes of a text or of messages is not known before it has.
    """
    if bytes(members.get("truncate_prompt_tokens", b"null")) != b"null":
        return None
    try:
        return array("I", _IDS.decode(members["prompt"]))
    except (KeyError, msgspec.DecodeError, OverflowError):
        return None


def reports_ids(members: Members) -> bool:
    return members.get("return_token_ids") == TRUE


def kept_tokens(params: TransferParams, tokens: int, block_tokens: int) -> int:
    """Return how many tokens of a prompt and its answer, of `tokens` together, the kept blocks hold.

    Raises:
        HandoverError: the parameters are incomplete, or the blocks are not those of this many tokens.
    """
    parameters.check_members(parameters.checked_object(params), _CHECKS)
    kept: int = params["remote_num_tokens"]
    if kept > tokens:
        raise HandoverError("the answer has fewer token ids than the worker has computed")
    if any(len(group) != -(-kept // block_tokens) for group in params["remote_block_ids"]):
        raise HandoverError("the worker keeps a part of the blocks, or more of them than its tokens need")
    return kept
