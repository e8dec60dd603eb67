"""The request that is placed after a death: the same one, with the answer so far at the end of its prompt."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial

import msgspec

from router.placement.request import Request
from router.residency.prompt import Prompt, PromptSource
from router.tokenization.hashing import CacheKeys, chain_of
from router.tokenization.local.memo import packed_ids


def resumed_prompt(
    request: Request, prompt_ids: array[int], output: array[int], given: int, block_tokens: int, salt: str | None
) -> Request:
    """Return the request for P + G: the `prompt_ids`, and the first `given` of the `output`, which is not copied.

    The hashes are those of the ids, if those of P are the ones by which the request was placed: then the adapter and
    the salt are known. Otherwise they stay those of P.
    """
    prompt, tokens = request.prompt, len(prompt_ids) + given
    if prompt is not None and prompt.exact and not prompt.multiple:
        before = list(prompt.chain(block_tokens))
        packed = packed_ids(prompt_ids)
        for adapter in (None, request.model):
            keys = CacheKeys.of(adapter, salt)
            if list(chain_of(packed, block_tokens, keys)[: len(before)]) == before:
                prompt = Prompt(tokens, PromptSource.IDS, partial(_chain, prompt_ids, output, given, keys))
                break
    return msgspec.structs.replace(request, prompt=prompt, prompt_tokens=tokens)


def _chain(prompt_ids: array[int], output: array[int], given: int, keys: CacheKeys, block_tokens: int) -> Sequence[int]:
    return chain_of(packed_ids(prompt_ids + output[:given]), block_tokens, keys)
