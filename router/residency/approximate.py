"""A model of one worker's own cache, for workers that publish no events and for prompts known as text only.

It follows vLLM: blocks enter when a request is served, room is made from the least recently finished request's tail
towards its head, a running request takes room of its own, and generated tokens fill blocks too. Reported
``cached_tokens`` correct it.

Blocks are kept in runs (8 bytes a block), each touched as a whole: a radix tree whose runs stand in one eviction
order. A run never comes before its children there, since whoever touches a child touches its parents with it.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

RUN_BYTES = 500
"""Rough memory of one run besides its hashes (measured on CPython 3.11)."""

HASH_BYTES = 8

_FULL = 7 / 8
"""Share of the room in use from which on blocks are missing for want of room, and not for another reason."""
_LARGEST_STEP = 32
"""One report changes the room by at most one part in so many."""
_LEAST_ROOM = 4
"""Unseen blocks never take more than all but one part in so many."""
_ANSWERS = 16
"""The mean length of answers is taken over about so many."""
_CONTINUATIONS = 8
"""Whether answers come back in later prompts is judged by about the last so many prompts that could tell."""


class CachedRun:
    """Consecutive blocks with one fate.

    A *generated* run holds blocks whose ids were never seen (the router does not tokenise answers): `hashes` is empty,
    and it is hit by a prompt of more than `end_tokens` tokens that goes on from its parent.
    """

    __slots__ = ("blocks", "children", "end_tokens", "generated", "hashes", "parent", "touched")

    def __init__(self, parent: CachedRun | None, hashes: array[int], blocks: int, end_tokens: int = 0) -> None:
        self.parent = parent
        self.hashes = hashes
        self.blocks = blocks
        self.end_tokens = end_tokens
        self.children: dict[int, CachedRun] = {}
        self.generated: CachedRun | None = None
        self.touched = 0


class ApproximateView:
    """The cache of one worker as far as this router's own traffic tells."""

    __slots__ = (
        "_answer_tokens",
        "_continued",
        "_order",
        "_root",
        "block_size",
        "blocks",
        "capacity_blocks",
        "clock",
        "corrections",
        "reserved_blocks",
        "unseen_blocks",
    )

    def __init__(self, block_size: int, capacity_blocks: int) -> None:
        self.block_size = block_size
        self.capacity_blocks = capacity_blocks
        self.reserved_blocks = 0
        self.unseen_blocks = 0
        """Part of the capacity that something else seems to take: other routers' traffic, or a smaller cache."""
        self.blocks = 0
        self.clock = 0
        """Counts finished requests; runs remember when they were touched last."""
        self.corrections = 0
        self._answer_tokens = 0.0
        self._continued = 1.0
        self._root = CachedRun(None, array("Q"), 0)
        self._order: OrderedDict[CachedRun, None] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        """Rough memory."""
        return len(self._order) * RUN_BYTES + self.blocks * HASH_BYTES

    @property
    def half_answer_tokens(self) -> int:
        """What a running request has generated: on average, half of what answers come to."""
        return round(self._answer_tokens / 2)

    @property
    def answers_return(self) -> bool:
        """Whether prompts that go on from an earlier one carry its answer as it was generated.

        Most chats do. Templates that strip a model's thinking do not, nor do clients that keep summaries.
        """
        return self._continued >= 0.5

    def match(self, chain: Sequence[int], usable: int, tokens: int) -> int:
        """Blocks of `chain` (its first `usable`) that the worker should have, for a prompt of `tokens` tokens."""
        if not usable or chain[0] not in self._root.children:
            return 0  # as on most workers, for most prompts
        depth, generated = self._continuation(chain, usable, tokens)
        return min(usable, depth + generated) if self.answers_return else depth

    def found(self, chain: Sequence[int], usable: int, tokens: int, hit_blocks: int) -> None:
        """Learn from `hit_blocks` found whether answers return; ask before `finished` has changed what is known."""
        depth, generated = self._continuation(chain, usable, tokens)
        if generated and hit_blocks >= depth:
            self._continued += (float(hit_blocks > depth) - self._continued) / _CONTINUATIONS

    def _continuation(self, chain: Sequence[int], usable: int, tokens: int) -> tuple[int, int]:
        """Blocks of `chain` by their hashes, and generated ones behind them that may be the prompt's, too."""
        path, depth, whole = self._walk(chain, usable)
        generated = path[-1].generated if whole else None
        if generated is not None and depth < usable and tokens > generated.end_tokens:
            return depth, generated.blocks
        return depth, 0

    def running(self, chain: Sequence[int], tokens: int) -> int:
        """A request takes room: touch what it hits, make room for the rest; returns the blocks kept until
        `end_running`. Say so when it is sent: it will have its room before a later one looks for its prefix."""
        path, depth, _ = self._walk(chain, len(chain))
        reserved = max(0, -(-tokens // self.block_size) - depth)
        self._touch(self._split_end(path, depth))
        self.reserved_blocks += reserved
        self._make_room()
        return reserved

    def end_running(self, reserved: int) -> None:
        """A running request gave its room back."""
        self.reserved_blocks -= reserved

    def finished(self, chain: Sequence[int], tokens: int, generated_tokens: int, hit_blocks: int) -> None:
        """A request was served: its prompt and what it generated are in the cache now, its tail first to go.

        `hit_blocks` is how much of it was found there (reported, else predicted). The last generated token is never
        computed, so blocks end at ``tokens + generated_tokens - 1``.
        """
        self.clock += 1
        if generated_tokens:
            self._answer_tokens += (generated_tokens - self._answer_tokens) / min(self.clock, _ANSWERS)
        path, depth, _ = self._walk(chain, len(chain))
        path = self._split_end(path, depth)
        if depth < len(chain):
            self._identify(path[-1], hit_blocks - depth)
            path.append(self._add(path[-1], array("Q", chain[depth:])))
        more = (tokens + generated_tokens - 1) // self.block_size - len(chain) if generated_tokens else 0
        if more > 0:
            path.append(self._add_generated(path[-1], more, tokens + generated_tokens - 1))
        self._touch(path)
        self._make_room()

    def correct(self, chain: Sequence[int], hit_blocks: int, since: int) -> None:
        """Only `hit_blocks` of `chain` were found: what lies behind them and was last touched by `since` is gone."""
        self.corrections += 1
        path, depth, whole = self._walk(chain, hit_blocks) if hit_blocks < len(chain) else ([], -1, True)
        if depth < hit_blocks:
            return
        end = path[-1]
        if not whole:
            keep = depth - self._depth_before(path)
            if end.hashes[keep] != chain[depth]:
                return
            if end.touched <= since:
                self._cut(end, keep)
            else:
                self._drop_untouched(end, since)
            return
        if end.generated is not None and end.generated.touched <= since:
            self._drop(end.generated)
        child = end.children.get(chain[depth])
        if child is not None:
            self._drop_untouched(child, since)

    def fit(self, predicted_blocks: int, hit_blocks: int) -> None:
        """Learn the room there really is: a full cache that had less than predicted is smaller, one that had more
        is larger, up to its capacity."""
        half = (abs(predicted_blocks - hit_blocks) + 1) // 2
        step = min(half, max(1, self.capacity_blocks // _LARGEST_STEP))
        if hit_blocks > predicted_blocks:
            self.unseen_blocks = max(0, self.unseen_blocks - step)
        elif hit_blocks < predicted_blocks and self.blocks + self.reserved_blocks >= self._room * _FULL:
            most = self.capacity_blocks - self.capacity_blocks // _LEAST_ROOM
            self.unseen_blocks = min(most, self.unseen_blocks + step)
            self._make_room()

    def resize(self, capacity_blocks: int) -> None:
        """The worker's cache turned out to have this many blocks."""
        if capacity_blocks != self.capacity_blocks:
            self.capacity_blocks = capacity_blocks
            self.unseen_blocks = 0
        self._make_room()

    def shrink(self, size_bytes: int) -> None:
        """Evict until no more than `size_bytes` are used."""
        while self._order and self.size_bytes > size_bytes:
            self._evict(max(1, (self.size_bytes - size_bytes) // HASH_BYTES))

    def _walk(self, chain: Sequence[int], limit: int) -> tuple[list[CachedRun], int, bool]:
        """Runs along `chain` from the root, blocks matched, and whether the last run matched whole."""
        run = self._root
        path = [run]
        depth = 0
        while depth < limit:
            child = run.children.get(chain[depth])
            if child is None:
                break
            path.append(child)
            common = _common(child.hashes, chain, depth, min(len(child.hashes), limit - depth))
            depth += common
            if common < len(child.hashes):
                return path, depth, False
            run = child
        return path, depth, True

    @staticmethod
    def _depth_before(path: list[CachedRun]) -> int:
        return sum(run.blocks for run in path[:-1])

    def _split_end(self, path: list[CachedRun], depth: int) -> list[CachedRun]:
        """Make the last run of `path` end at `depth`; it must be touched next, to take its place in the order."""
        end = path[-1]
        keep = depth - self._depth_before(path)
        if end.parent is None or keep == end.blocks:
            return path
        upper = CachedRun(end.parent, end.hashes[:keep], keep)
        upper.touched = end.touched
        upper.children[end.hashes[keep]] = end
        end.parent.children[end.hashes[0]] = upper
        end.parent = upper
        end.hashes = end.hashes[keep:]
        end.blocks -= keep
        return [*path[:-1], upper]

    def _add(self, parent: CachedRun, hashes: array[int]) -> CachedRun:
        run = parent.children[hashes[0]] = CachedRun(parent, hashes, len(hashes))
        self.blocks += run.blocks
        return run

    def _add_generated(self, parent: CachedRun, blocks: int, end_tokens: int) -> CachedRun:
        """The newest answer is the one a next turn goes on from; an older one only takes up room.

        So does the answer to a prompt of less than a block: nothing tells which prompt would go on from it.
        """
        run = CachedRun(parent, array("Q"), blocks, end_tokens)
        if parent is not self._root:
            parent.generated = run
        self.blocks += blocks
        return run

    def _identify(self, parent: CachedRun, hit_blocks: int) -> None:
        """A prompt that goes on from `parent` hit generated blocks: they are that prompt's from now on."""
        generated = parent.generated
        if generated is None or hit_blocks <= 0:
            return
        self._shorten(generated, min(hit_blocks, generated.blocks))
        parent.generated = None

    def _touch(self, path: list[CachedRun]) -> None:
        for run in reversed(path[1:]):
            run.touched = self.clock
            self._order[run] = None
            self._order.move_to_end(run)

    @property
    def _room(self) -> int:
        return self.capacity_blocks - self.unseen_blocks

    def _make_room(self) -> None:
        room = max(0, self._room - self.reserved_blocks)
        while self.blocks > room:
            self._evict(self.blocks - room)

    def _evict(self, blocks: int) -> None:
        """Take up to `blocks` from the tail of the run that is first in order."""
        run = next(iter(self._order))
        self._shorten(run, min(blocks, run.blocks))

    def _shorten(self, run: CachedRun, blocks: int) -> None:
        """Take `blocks` off the end of a run without children."""
        self.blocks -= blocks
        run.blocks -= blocks
        if run.blocks == 0:
            self._unlink(run)
        elif run.hashes:
            del run.hashes[run.blocks :]

    def _unlink(self, run: CachedRun) -> None:
        del self._order[run]
        parent = run.parent
        if parent is None:
            return
        if run.hashes:
            del parent.children[run.hashes[0]]
        elif parent.generated is run:
            parent.generated = None

    def _drop(self, run: CachedRun) -> None:
        """Remove a run and all below it."""
        self._drop_below(run)
        self._shorten(run, run.blocks)

    def _drop_below(self, run: CachedRun) -> None:
        """Remove all below a run, deepest first. Not recursive: a long conversation is a run per turn."""
        doomed = _below(run)
        for index, parent in enumerate(doomed):
            doomed[index + 1 : index + 1] = _below(parent)
        for below in reversed(doomed):
            self._shorten(below, below.blocks)

    def _drop_untouched(self, run: CachedRun, since: int) -> None:
        waiting = [run]
        while waiting:
            run = waiting.pop()
            if run.touched <= since:
                self._drop(run)
            else:
                waiting.extend(_below(run))

    def _cut(self, run: CachedRun, keep: int) -> None:
        """Keep the first `keep` blocks of a run and nothing below."""
        self._drop_below(run)
        self._shorten(run, run.blocks - keep)

    def statistics(self) -> dict[str, int]:
        """Sizes and corrections."""
        return {
            "blocks": self.blocks,
            "runs": len(self._order),
            "reserved_blocks": self.reserved_blocks,
            "unseen_blocks": self.unseen_blocks,
            "corrections": self.corrections,
            "size_bytes": self.size_bytes,
        }


def _below(run: CachedRun) -> list[CachedRun]:
    return [*run.children.values()] if run.generated is None else [*run.children.values(), run.generated]


def _common(hashes: Sequence[int], chain: Sequence[int], at: int, longest: int) -> int:
    """Blocks that `hashes` and ``chain[at:]`` share (at least one, at most `longest`): chained, so halving finds it."""
    if hashes[longest - 1] == chain[at + longest - 1]:
        return longest
    low, high = 1, longest - 1
    while low < high:
        middle = (low + high + 1) // 2
        if hashes[middle - 1] == chain[at + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
