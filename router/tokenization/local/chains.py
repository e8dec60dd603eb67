"""Block hashes on demand: the function that a `Prompt` calls for each block size."""

from __future__ import annotations

from array import array
from collections import deque
from typing import Protocol

from xxhash import xxh3_64_intdigest

from backends.vllm.unrenderable import Unrenderable
from router.tokenization.hashing import CacheKeys, chain_of
from router.tokenization.local.local_tokenizer import LocalModel
from router.tokenization.local.memo import MemoNode, SegmentMemo, packed_ids

TEXT_SEED = 0x7465_7874_6964_656E
TEXT_BYTES_PER_TOKEN = 4
"""UTF-8 bytes that stand for one token in text hashes, for every tokenizer: near the mean of current ones."""


MAX_ENCODED_BYTES = 65_536
"""Longer texts are not tokenised on the event loop for a block size that the memo does not keep. The memo keeps that
size from then on.
"""
MAX_HASHED_BYTES = 2_097_152
"""Text hashes stop at this length. Longer prefixes do not help a router, and these hashes take about 8 ms."""
HELD_BYTES = 300
"""Memory of a held chain beyond its text."""


class ReleasableText(Protocol):
    """Hold a prompt's text or ids, and release them on request."""

    def release(self) -> None:
        """Release the text or ids. Block sizes not requested so far have no hashes from then on."""


class NodeChain:
    """Hashes of a prefix in the memo. For a block size that the memo does not keep, they are computed from the text."""

    __slots__ = ("_framed", "_keys", "_local", "_memo", "_node", "_text")

    def __init__(
        self, memo: SegmentMemo, node: MemoNode, local: LocalModel, text: bytes | None, keys: CacheKeys, *, framed: bool
    ) -> None:
        self._memo = memo
        self._node = node
        self._local = local
        self._text = text
        self._keys = keys
        self._framed = framed

    def __call__(self, block_tokens: int) -> array[int]:
        chain = self._memo.chain(self._node, block_tokens)
        if chain is not None:
            return chain
        if self._text is None or len(self._text) > MAX_ENCODED_BYTES:
            return array("Q")
        try:
            ids = self._local.renderer.encode(self._text.decode(), self._framed)
        except Unrenderable:
            return array("Q")
        return chain_of(packed_ids(array("I", ids)), block_tokens, self._keys)

    def release(self) -> None:
        self._text = None


class IdsChain:
    __slots__ = ("_keys", "_packed")

    def __init__(self, packed: bytes, keys: CacheKeys) -> None:
        self._packed = packed
        self._keys = keys

    def __call__(self, block_tokens: int) -> array[int]:
        return chain_of(self._packed, block_tokens, self._keys)

    def release(self) -> None:
        self._packed = b""


class TextChain:
    """Hashes over text: block i ends after ``(i + 1) * block_tokens * TEXT_BYTES_PER_TOKEN`` bytes.

    The width in bytes never changes, so a longer conversation keeps the hashes of its shorter form. Chains from before
    and after a change of the learned bytes per token can be compared. That ratio only sets the estimated length of the
    prompt, and so the end of the chain. Chains of different block sizes cannot be compared.
    """

    __slots__ = ("_data", "_seed", "_tokens")

    def __init__(self, data: bytes, tokens: int, keys: CacheKeys) -> None:
        self._data = data[:MAX_HASHED_BYTES]
        self._tokens = tokens
        self._seed = TEXT_SEED ^ keys.seed

    def __call__(self, block_tokens: int) -> array[int]:
        """Return hashes of that size, at most one per full block of the estimated length."""
        width = block_tokens * TEXT_BYTES_PER_TOKEN
        blocks = min(len(self._data) // width, self._tokens // block_tokens)
        key = self._seed ^ block_tokens
        hashes = array("Q")
        for start in range(0, blocks * width, width):
            key = xxh3_64_intdigest(self._data[start : start + width], key)
            hashes.append(key)
        return hashes

    def release(self) -> None:
        self._data = b""


class RecentTexts:
    """Keep the texts of the latest prompts, up to `max_bytes`, and release older ones.

    A prompt lives as long as its response, but its text is needed only when it is placed. Without this bound the texts
    of all running requests would stay in memory, in case a further block size is requested.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: deque[tuple[ReleasableText, int]] = deque()
        self._bytes = 0

    def hold(self, chain: ReleasableText, size_bytes: int) -> None:
        size_bytes += HELD_BYTES
        self._held.append((chain, size_bytes))
        self._bytes += size_bytes
        while self._bytes > self._max_bytes and len(self._held) > 1:
            oldest, freed = self._held.popleft()
            self._bytes -= freed
            oldest.release()

    def statistics(self) -> dict[str, int]:
        return {"texts": len(self._held), "bytes": self._bytes}
