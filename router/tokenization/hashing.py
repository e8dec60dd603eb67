"""The keys of the cache other than tokens, and block chains over packed ids with these keys."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from router.residency.chain import SEED, TOKEN_BYTES, extend_chain, extra_bytes


@dataclass(frozen=True, slots=True)
class CacheKeys:
    """A request's extra keys as canonical bytes, for its first block and for every further one. Make them with `of`.

    vLLM puts the LoRA name on every block, and `cache_salt` on the first only (chaining spreads it).
    """

    first: bytes = b""
    rest: bytes = b""
    seed: int = 0
    """A number that differs if the keys do."""

    @classmethod
    def of(cls, adapter: str | None, cache_salt: str | None) -> CacheKeys:
        """Return the keys of a request to LoRA `adapter` (None: the base model) with `cache_salt`."""
        if not adapter and not cache_salt:
            return _NO_KEYS
        name = [adapter] if adapter else []
        first, rest = extra_bytes([*name, cache_salt] if cache_salt else name), extra_bytes(name)
        return cls(first, rest, xxh3_64_intdigest(first + b"\x00" + rest))

    def extras(self, first_block: int, blocks: int) -> Sequence[bytes] | None:
        if not self.first or not blocks:
            return None
        if first_block:
            return [self.rest] * blocks if self.rest else None
        return [self.first] + [self.rest] * (blocks - 1)


_NO_KEYS = CacheKeys()


def chain_of(packed: bytes, block_tokens: int, keys: CacheKeys) -> array[int]:
    blocks = len(packed) // (block_tokens * TOKEN_BYTES)
    return extend_chain(SEED, packed, block_tokens, keys.extras(0, blocks))
