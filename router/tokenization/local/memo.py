"""Remember tokenised prefixes: for each the length in tokens and the block hashes, but not the token ids.

It is a trie of text segments (`router.tokenization.local.segmenter`), kept flat. A prefix is found by the running
xxh3-64 of its segments, seeded with everything else that its hashes depend on. The next turn of a conversation takes
one pass over the text. Only new segments are tokenised, and their block hashes continue the hashes of the known prefix.
"""

from __future__ import annotations

import sys
from array import array
from collections import OrderedDict
from collections.abc import Sequence

import msgspec
from xxhash import xxh3_64_intdigest

from router.residency.chain import SEED, TOKEN_BYTES, extend_chain
from router.tokenization.hashing import CacheKeys

MAX_BLOCK_SIZES = 4
"""Block sizes whose hashes are kept; a fleet has one or two."""
NODE_BYTES = 350
"""Memory of a node and its place in the map, measured with tracemalloc (CPython 3.11), rounded up."""
RUN_BYTES = 240
"""Memory of a run without its hashes and tail, measured in the same way."""


class BlockRun(msgspec.Struct, frozen=True, gc=False):
    """Blocks of one size that a segment completed.

    `hashes` are the hashes of these blocks, and `last` is the latest hash of the whole prefix. `blocks` is the number
    of blocks in the prefix, and `tail` the packed ids after the last full block.
    """

    hashes: array[int]
    last: int
    blocks: int
    tail: bytes


class MemoNode(msgspec.Struct, frozen=True, gc=False):
    """A known prefix of `tokens` tokens; `runs` is parallel to the memo's block sizes. The root has no parent.

    `path_bytes` is its memory together with its own prefixes, `generation` the memo's generation at its creation.
    """

    key: int
    parent: MemoNode | None
    tokens: int
    runs: tuple[BlockRun, ...]
    path_bytes: int
    generation: int

    @property
    def own_bytes(self) -> int:
        return self.path_bytes - (self.parent.path_bytes if self.parent is not None else 0)


class SegmentMemo:
    """All known prefixes, up to `max_bytes`. Used from one thread."""

    def __init__(self, max_bytes: int, block_sizes: Sequence[int] = (16,)) -> None:
        self._max_bytes = max_bytes
        self._block_sizes = tuple(block_sizes)
        self._nodes: OrderedDict[int, MemoNode] = OrderedDict()
        self._bytes = 0
        self._generation = 0
        self._found_tokens = 0
        self._new_tokens = 0
        self._evicted = 0

    def root(self, seed: int, keys: CacheKeys, prefix: array[int]) -> MemoNode:
        """Return the start of all prefixes with one tokenizer and one set of extra keys; `prefix` are ids before any
        text."""
        empty = BlockRun(array("Q"), SEED, 0, b"")
        bare = MemoNode(seed ^ keys.seed, None, 0, (empty,) * len(self._block_sizes), 0, self._generation)
        return self._grown(bare, bare.key, prefix, keys) if prefix else bare

    def find(self, root: MemoNode, parts: Sequence[bytes]) -> tuple[MemoNode, int]:
        """Return the longest known prefix of `parts`, and the number of parts that it spans."""
        node, get, digest = root, self._nodes.get, xxh3_64_intdigest
        for index, part in enumerate(parts):
            child = get(digest(part, node.key))
            if child is None:
                return node, index
            node = child
        return node, len(parts)

    def known(self, key: int) -> MemoNode | None:
        """Return the prefix with this key, unless it was evicted."""
        return self._nodes.get(key)

    def extend(self, node: MemoNode, parts: Sequence[bytes], ids: Sequence[array[int]], keys: CacheKeys) -> MemoNode:
        """Remember the `ids` of `parts` after `node`; return the last prefix.

        A `node` from before a change of the block sizes cannot be extended. The result then only has a length.
        """
        self._found_tokens += node.tokens
        if node.generation != self._generation:
            return MemoNode(node.key, None, node.tokens + sum(map(len, ids)), (), 0, node.generation)
        for part, part_ids in zip(parts, ids, strict=True):
            key = xxh3_64_intdigest(part, node.key)
            node = self._nodes.get(key) or self._insert(self._grown(node, key, part_ids, keys))
            self._new_tokens += len(part_ids)
        self.touch(node)
        while self._bytes > self._max_bytes and self._nodes:
            self._evict()
        return node

    def touch(self, node: MemoNode | None) -> None:
        """Mark a prefix as used, then the prefixes of it, so that they are evicted after it."""
        nodes = self._nodes
        while node is not None and node.key in nodes:
            nodes.move_to_end(node.key)
            node = node.parent

    def chain(self, node: MemoNode, block_tokens: int) -> array[int] | None:
        """Return the block hashes of a prefix; None if this block size is not kept (it is from now on, within the
        bound)."""
        place = self._block_sizes.index(block_tokens) if block_tokens in self._block_sizes else MAX_BLOCK_SIZES
        if place >= len(node.runs):
            self._want(block_tokens)
            return None
        parts: list[array[int]] = []
        step: MemoNode | None = node
        while step is not None:
            parts.append(step.runs[place].hashes)
            step = step.parent
        chain = array("Q")
        for part in reversed(parts):
            chain += part
        return chain

    def statistics(self) -> dict[str, int]:
        return {
            "prefixes": len(self._nodes),
            "bytes": self._bytes,
            "found_tokens": self._found_tokens,
            "new_tokens": self._new_tokens,
            "evicted": self._evicted,
        }

    def _want(self, block_tokens: int) -> None:
        """Keep one more block size. The memo starts over, because known prefixes lack its hashes; once per size."""
        if block_tokens in self._block_sizes or len(self._block_sizes) >= MAX_BLOCK_SIZES:
            return
        self._block_sizes += (block_tokens,)
        self._generation += 1
        self._nodes.clear()
        self._bytes = 0

    def _grown(self, parent: MemoNode, key: int, ids: array[int], keys: CacheKeys) -> MemoNode:
        packed = packed_ids(ids)
        runs = tuple(
            _continued(run, packed, size, keys) for run, size in zip(parent.runs, self._block_sizes, strict=True)
        )
        size = NODE_BYTES + sum(RUN_BYTES + 8 * len(run.hashes) + len(run.tail) for run in runs)
        return MemoNode(key, parent, parent.tokens + len(ids), runs, parent.path_bytes + size, self._generation)

    def _insert(self, node: MemoNode) -> MemoNode:
        self._nodes[node.key] = node
        self._bytes += node.own_bytes
        return node

    def _evict(self) -> None:
        _, node = self._nodes.popitem(last=False)
        self._bytes -= node.own_bytes
        self._evicted += 1


def packed_ids(ids: array[int]) -> bytes:
    if sys.byteorder == "big":
        ids = ids[:]
        ids.byteswap()
    return ids.tobytes()


def common_tokens(one: bytes, other: bytes) -> int:
    """Return the length of the common prefix of two prompts, given as packed ids."""
    low, high = 0, min(len(one), len(other)) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if one[low * TOKEN_BYTES : middle * TOKEN_BYTES] == other[low * TOKEN_BYTES : middle * TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low


def _continued(run: BlockRun, packed: bytes, block_tokens: int, keys: CacheKeys) -> BlockRun:
    waiting = run.tail + packed
    blocks = len(waiting) // (block_tokens * TOKEN_BYTES)
    if not blocks:
        return BlockRun(array("Q"), run.last, run.blocks, waiting)
    hashes = extend_chain(run.last, waiting, block_tokens, keys.extras(run.blocks, blocks))
    return BlockRun(hashes, hashes[-1], run.blocks + blocks, waiting[blocks * block_tokens * TOKEN_BYTES :])
