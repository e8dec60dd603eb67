"""Block hashes of one worker: chained, and split by the same keys as vLLM's cache.

They stand for vLLM's block hashes and are private to the engine. A listener must treat them as opaque, like those of a
real worker.
"""

from __future__ import annotations

from array import array

import xxhash

from backends.engine.events import BlockExtraKeys

SEED = 0x77_61_72_6D_72_6F_75_74
"""Stands for vLLM's hash of the empty prefix; fixed, so that runs repeat."""


class BlockHasher:
    """Hash one request's blocks, with the keys other than tokens that are part of the hashes.

    The LoRA name enters every block; the cache salt enters the first one, and the chain spreads it.
    """

    __slots__ = ("_block_tokens", "_first_suffix", "_suffix", "first_extra", "later_extra")

    def __init__(self, block_tokens: int, lora_name: str | None, cache_salt: str | None) -> None:
        self._block_tokens = block_tokens
        lora = (lora_name,) if lora_name else ()
        salt = (cache_salt,) if cache_salt else ()
        self.first_extra: BlockExtraKeys = (lora + salt) or None
        self.later_extra: BlockExtraKeys = lora or None
        self._suffix = b"\0lora\0" + lora_name.encode("utf-8", "surrogatepass") if lora_name else b""
        self._first_suffix = self._suffix + (
            b"\0salt\0" + cache_salt.encode("utf-8", "surrogatepass") if cache_salt else b""
        )

    def extend(self, hashes: list[int], tokens: array[int]) -> None:
        start = len(hashes)
        end = len(tokens) // self._block_tokens
        if start == end:
            return
        parent = hashes[-1] if start else SEED
        stride = self._block_tokens * tokens.itemsize
        packed = tokens[start * self._block_tokens : end * self._block_tokens].tobytes()
        for index in range(end - start):
            block = packed[index * stride : (index + 1) * stride]
            suffix = self._suffix if start + index else self._first_suffix
            parent = xxhash.xxh3_64_intdigest(block + suffix if suffix else block, seed=parent)
            hashes.append(parent)

    def extra_keys(self, first: int, last: int) -> tuple[BlockExtraKeys, ...]:
        """Return the extra keys of the blocks with index `first` to `last`, exclusive."""
        later = (self.later_extra,) * (last - first)
        return (self.first_extra, *later[1:]) if first == 0 and later else later
