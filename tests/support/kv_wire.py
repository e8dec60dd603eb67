"""KV events as a vLLM worker publishes them, written by hand, and prompts to match with them."""

import hashlib
from collections.abc import Sequence

import msgspec

from router.residency.chain import SEED, extend_chain, extra_bytes, pack_tokens
from router.residency.prompt import Prompt, PromptSource

BLOCK_SIZE = 4


def engine_hash(prefix: Sequence[int], salt: object = "") -> int:
    """Return the worker's own hash of the block that ends `prefix`. Workers and adapters differ by `salt`."""
    return int.from_bytes(hashlib.sha256(repr((tuple(prefix), salt)).encode()).digest()[-8:], "big")


class Wire:
    """Encodes KV events as vLLM does; `shape` is "map" or "row"."""

    def __init__(self, shape: str = "map", salt: object = "", block_size: int = BLOCK_SIZE) -> None:
        self.shape = shape
        self.salt = salt
        self.block_size = block_size

    def hashes(self, tokens: Sequence[int]) -> list[int]:
        size = self.block_size
        return [engine_hash(tokens[: end + size], self.salt) for end in range(0, len(tokens) - size + 1, size)]

    def stored(self, tokens: Sequence[int], start: int = 0, **fields: object) -> object:
        hashes = self.hashes(tokens)
        event = {
            "type": "BlockStored",
            "block_hashes": hashes[start:],
            "parent_block_hash": hashes[start - 1] if start else None,
            "token_ids": list(tokens[start * self.block_size : len(hashes) * self.block_size]),
            "block_size": self.block_size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            **fields,
        }
        names = ["extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"]
        if self.shape == "map":
            return event
        return [*list(event.values())[:8], *(event.get(name) for name in names)]

    def removed(self, hashes: Sequence[int], medium: str | None = "GPU", group: int | None = None) -> object:
        if self.shape == "map":
            return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": medium, "group_idx": group}
        return ["BlockRemoved", list(hashes), medium, group]

    def cleared(self) -> object:
        return {"type": "AllBlocksCleared"} if self.shape == "map" else ["AllBlocksCleared"]

    def batch(self, *events: object, ts: float = 1.0) -> bytes:
        return msgspec.msgpack.encode([ts, list(events), 0])


def ids_prompt(tokens: Sequence[int], extras: Sequence[Sequence[object] | None] | None = None) -> Prompt:
    tokens = list(tokens)
    extra = [extra_bytes(keys) for keys in extras] if extras else None
    return Prompt(len(tokens), PromptSource.IDS, lambda size: extend_chain(SEED, pack_tokens(tokens), size, extra))


def text_prompt(tokens: Sequence[int]) -> Prompt:
    tokens = list(tokens)
    return Prompt(len(tokens), PromptSource.TEXT, lambda size: extend_chain(SEED + 1, pack_tokens(tokens), size))
