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


def resumed_prompt(request: Request, ids: array[int], block_tokens: int, salt: str | None) -> Request:
    """Return the request for the `ids` P + G.

    The hashes are those of the ids, if those of P are the ones by which the request was placed: then the adapter and
    the salt are known. Otherwise they stay those of P.
    """
    prompt, packed = request.prompt, packed_ids(ids)
    if prompt is not None and prompt.exact and not prompt.multiple:
        before = list(prompt.chain(block_tokens))
        for adapter in (None, request.model):
            keys = CacheKeys.of(adapter, salt)
            if list(chain_of(packed, block_tokens, keys)[: len(before)]) == before:
                prompt = Prompt(len(ids), PromptSource.IDS, partial(_chain, packed, keys))
                break
    return msgspec.structs.replace(request, prompt=prompt, prompt_tokens=len(ids))


def _chain(packed: bytes, keys: CacheKeys, block_tokens: int) -> Sequence[int]:
    return chain_of(packed, block_tokens, keys)
