"""Block hashes: a chain of xxh3-64 over packed token ids, the identity that both sides of the index share."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

import msgspec
from xxhash import xxh3_64_intdigest

SEED = 0x7761726D726F7574
"""Parent of a prompt's first block."""

TOKEN_BYTES = 4
"""Size of one packed token id (u32, little-endian)."""


def extra_bytes(values: Sequence[object] | None) -> bytes:
    """Return the canonical bytes of one block's untagged extra keys, as KV events list them; b"" for none.

    `values` holds, in vLLM's order, the LoRA name, one ``(multimodal id, offset)`` pair per item, the cache salt (first
    block only) and the digest of prompt embeddings. A key that does not apply is absent.

    Raises:
        TypeError: a value is not made of strings, bytes, numbers and sequences of them.
    """
    return msgspec.msgpack.encode(list(values)) if values else b""


def extend_chain(
    parent: int, token_bytes: bytes, block_tokens: int, extras: Sequence[bytes] | None = None
) -> array[int]:
    """Hash the whole blocks that follow `parent` (`SEED` at the start of a prompt).

    `token_bytes` are token ids as little-endian u32; a last, partial block is left out. `extras` runs parallel to the
    blocks (`extra_bytes`); blocks beyond its end have none. The i-th result is ``xxh3_64(parent as 8 bytes
    little-endian + block i's token bytes + extras[i])`` with the (i-1)-th as parent, so it stands for the whole prefix
    up to the end of block i.
    """
    width = block_tokens * TOKEN_BYTES
    end = len(token_bytes) - len(token_bytes) % width
    digest = xxh3_64_intdigest
    if not extras or not any(extras):
        return array(
            "Q",
            [
                parent := digest(parent.to_bytes(8, "little") + token_bytes[start : start + width])
                for start in range(0, end, width)
            ],
        )
    hashes = array("Q")
    for index, start in enumerate(range(0, end, width)):
        extra = extras[index] if index < len(extras) else b""
        parent = digest(parent.to_bytes(8, "little") + token_bytes[start : start + width] + extra)
        hashes.append(parent)
    return hashes


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Pack token ids into the bytes that `extend_chain` takes.

    Raises:
        struct.error: an id is not an integer or does not fit into 32 bits.
    """
    return struct.pack(f"<{len(token_ids)}I", *token_ids)
