"""A model of one worker's cache, for workers that publish no events and for prompts known as text only.

It follows vLLM. Blocks enter when a request is served. Eviction takes the least recently finished request first, from
its tail to its head. A running request takes space, and generated tokens fill blocks too. Reported ``cached_tokens``
correct the model.

Blocks are kept in runs, 8 bytes a block. The runs form a radix tree, and all of them share one eviction order. A parent
is never evicted before its children, because a request that touches a child touches the parents too.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

RUN_BYTES = 500
"""Approximate memory of one run without its hashes (measured on CPython 3.11)."""

HASH_BYTES = 8

_FULL_SHARE = 7 / 8
"""Share of the capacity in use above which missing blocks count as evicted. Below it, eviction cannot be the cause."""
_LARGEST_STEP = 32
"""One report changes the capacity by at most 1/32."""
_MIN_CAPACITY_PART = 4
"""Unseen blocks take at most 3/4 of the capacity."""
_ANSWERS = 16
"""The mean answer length is taken over about 16 answers."""
_CONTINUATIONS = 8
"""About the last 8 prompts that can show it decide whether answers return in later prompts."""


class CachedRun:
    """Consecutive blocks that are stored and touched together.

    A *generated* run holds blocks whose ids were never seen, because the router does not tokenise answers. Its `hashes`
    are empty. A prompt hits such a run if it continues the run's parent and has more than `end_tokens` tokens.
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


class ApproximateCache:
    """A model of one worker's cache, made from the traffic that passes this router."""

    def __init__(self, block_size: int, capacity_blocks: int) -> None:
        self.block_size = block_size
        self.capacity_blocks = capacity_blocks
        self.reserved_blocks = 0
        self.unseen_blocks = 0
        """Blocks of the capacity that this router's traffic does not explain: other routers send requests, or the cache
        is smaller than reported.
        """
        self.blocks = 0
        self.clock = 0
        """Number of finished requests. A run remembers the clock of its last use."""
        self.corrections = 0
        self._answer_tokens = 0.0
        self._continued = 1.0
        self._root = CachedRun(None, array("Q"), 0)
        self._order: OrderedDict[CachedRun, None] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        return len(self._order) * RUN_BYTES + self.blocks * HASH_BYTES

    @property
    def half_answer_tokens(self) -> int:
        """Return the tokens that a running request has generated on average: half of the mean answer."""
        return round(self._answer_tokens / 2)

    @property
    def answers_return(self) -> bool:
        """Return whether prompts that continue an earlier one contain its answer as it was generated.

        Most chats contain it. Templates that strip a model's thinking change it, and so do clients that keep summaries.
        """
        return self._continued >= 0.5

    def match(self, chain: Sequence[int], usable: int, tokens: int) -> int:
        """Return how many of the first `usable` blocks of `chain` the worker should hold, for a prompt of `tokens`
        tokens."""
        if not usable or chain[0] not in self._root.children:
            return 0  # the common case: most prompts on most workers
        depth, generated = self._continuation(chain, usable, tokens)
        return min(usable, depth + generated) if self.answers_return else depth

    def found(self, chain: Sequence[int], usable: int, tokens: int, hit_blocks: int) -> None:
        """Learn from `hit_blocks` whether answers return. Call it before `finished` changes the model."""
        depth, generated = self._continuation(chain, usable, tokens)
        if generated and hit_blocks >= depth:
            self._continued += (float(hit_blocks > depth) - self._continued) / _CONTINUATIONS

    def _continuation(self, chain: Sequence[int], usable: int, tokens: int) -> tuple[int, int]:
        """Return the blocks of `chain` found by hash, and the generated blocks after them that may belong to the
        prompt."""
        path, depth, whole = self._walk(chain, usable)
        generated = path[-1].generated if whole else None
        if generated is not None and depth < usable and tokens > generated.end_tokens:
            return depth, generated.blocks
        return depth, 0

    def running(self, chain: Sequence[int], tokens: int) -> int:
        """Reserve space for a request: touch the blocks that it hits and evict others for the rest. Return the number
        of blocks reserved until `end_running`.

        Call it when the request is sent, so that its space is taken before a later request looks for its prefix.
        """
        path, depth, _ = self._walk(chain, len(chain))
        reserved = max(0, -(-tokens // self.block_size) - depth)
        self._touch(self._split_end(path, depth))
        self.reserved_blocks += reserved
        self._evict_to_fit()
        return reserved

    def end_running(self, reserved: int) -> None:
        self.reserved_blocks -= reserved

    def finished(self, chain: Sequence[int], tokens: int, generated_tokens: int, hit_blocks: int) -> None:
        """Store the prompt and the answer of a served request; its tail is evicted first.

        `hit_blocks` is the number of prompt blocks found in the cache, as reported, or else as predicted. The last
        generated token is never computed, so blocks end at ``tokens + generated_tokens - 1``.
        """
        self.clock += 1
        if generated_tokens:
            self._answer_tokens += (generated_tokens - self._answer_tokens) / min(self.clock, _ANSWERS)
        path, depth, _ = self._walk(chain, len(chain))
        path = self._split_end(path, depth)
        if depth < len(chain):
            generated = path[-1].generated
            if generated is not None and hit_blocks > depth:  # the prompt shows what was generated
                self._shorten(generated, min(hit_blocks - depth, generated.blocks))
                path[-1].generated = None
            path.append(self._add(path[-1], array("Q", chain[depth:])))
        more = (tokens + generated_tokens - 1) // self.block_size - len(chain) if generated_tokens else 0
        if more > 0:
            path.append(self._add_generated(path[-1], more, tokens + generated_tokens - 1))
        self._touch(path)
        self._evict_to_fit()

    def known(self, chain: Sequence[int]) -> tuple[array[int], int]:
        """Return the first block of each run along `chain`, and how many blocks of it are known by their hashes."""
        path, depth, _ = self._walk(chain, len(chain))
        return array("Q", [run.hashes[0] for run in path[1:]]), depth

    def placed(self, steps: Sequence[int], depth: int, blocks: Sequence[int]) -> bool:
        """Store blocks of a prompt that another router has sent to the worker, without its answer.

        They come after the first `depth` blocks of the prompt, of which `steps` has those at which `known` found runs
        there, and the last one. Return False, and store nothing, if these are not here. Blocks are chained: if the last
        one is the same, so are all before it.
        """
        path = self._find(steps, depth)
        if path is None:
            return False
        path, more, whole = self._walk(blocks, len(blocks), path)
        if not whole:
            path = self._split_end(path, depth + more)
        if more < len(blocks):
            path.append(self._add(path[-1], array("Q", blocks[more:])))
        self._touch(path)
        self._evict_to_fit()
        return True

    def _find(self, steps: Sequence[int], depth: int) -> list[CachedRun] | None:
        """Return the runs from the root to block ``steps[-1]``, the last of `depth`, where they end now."""
        run = self._root
        path = [run]
        end, step = 0, 0
        while end < depth:
            children = run.children
            if len(children) == 1:
                (run,) = children.values()
            else:
                while step < len(steps) and steps[step] not in children:
                    step += 1
                if step == len(steps):
                    return None
                run = children[steps[step]]
            path.append(run)
            end += run.blocks
        if depth and run.hashes[depth - end - 1] != steps[-1]:
            return None
        return path if end == depth else self._split_end(path, depth)

    def correct(self, chain: Sequence[int], hit_blocks: int, since: int) -> None:
        """Drop the blocks of `chain` after the first `hit_blocks`, because the worker did not find them. Keep blocks
        touched later than `since`.
        """
        self.corrections += 1
        path, depth, whole = self._walk(chain, hit_blocks) if hit_blocks < len(chain) else ([], -1, True)
        if depth < hit_blocks:
            return
        end = path[-1]
        if not whole:
            keep = depth - _depth_before(path)
            if end.hashes[keep] != chain[depth]:
                return
            if end.touched <= since:
                self._drop_below(end)
                self._shorten(end, end.blocks - keep)
            else:
                self._drop_untouched(end, since)
            return
        if end.generated is not None and end.generated.touched <= since:
            self._drop(end.generated)
        child = end.children.get(chain[depth])
        if child is not None:
            self._drop_untouched(child, since)

    def fit(self, predicted_blocks: int, hit_blocks: int) -> None:
        """Learn the real capacity. A full cache that held fewer blocks than predicted is smaller; one that held more is
        larger, up to the reported capacity.
        """
        half = (abs(predicted_blocks - hit_blocks) + 1) // 2
        step = min(half, max(1, self.capacity_blocks // _LARGEST_STEP))
        if hit_blocks > predicted_blocks:
            self.unseen_blocks = max(0, self.unseen_blocks - step)
        elif (
            hit_blocks < predicted_blocks
            and self.blocks + self.reserved_blocks >= (self.capacity_blocks - self.unseen_blocks) * _FULL_SHARE
        ):
            most = self.capacity_blocks - self.capacity_blocks // _MIN_CAPACITY_PART
            self.unseen_blocks = min(most, self.unseen_blocks + step)
            self._evict_to_fit()

    def resize(self, capacity_blocks: int) -> None:
        if capacity_blocks != self.capacity_blocks:
            self.capacity_blocks = capacity_blocks
            self.unseen_blocks = 0
        self._evict_to_fit()

    def shrink(self, size_bytes: int) -> None:
        while self._order and self.size_bytes > size_bytes:
            self._evict(max(1, (self.size_bytes - size_bytes) // HASH_BYTES))

    def _walk(
        self, chain: Sequence[int], limit: int, path: list[CachedRun] | None = None
    ) -> tuple[list[CachedRun], int, bool]:
        """Return the runs along `chain` from the end of `path`, the blocks matched, and whether the last run matched
        whole. Without `path`, begin at the root."""
        path = [self._root] if path is None else path
        run = path[-1]
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

    def _split_end(self, path: list[CachedRun], depth: int) -> list[CachedRun]:
        """Make the last run of `path` end at `depth`. The caller must touch the run next, which puts it into the
        eviction order.
        """
        end = path[-1]
        keep = depth - _depth_before(path)
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
        """Add an answer. The next turn continues the newest answer; an older one only takes space.

        An answer to a prompt shorter than a block cannot be continued either: no hash identifies the prompt.
        """
        run = CachedRun(parent, array("Q"), blocks, end_tokens)
        if parent is not self._root:
            parent.generated = run
        self.blocks += blocks
        return run

    def _touch(self, path: list[CachedRun]) -> None:
        # Deepest run first, so that each parent comes after its children in the eviction order.
        for run in reversed(path[1:]):
            run.touched = self.clock
            self._order[run] = None
            self._order.move_to_end(run)

    def _evict_to_fit(self) -> None:
        fitting = max(0, self.capacity_blocks - self.unseen_blocks - self.reserved_blocks)
        while self.blocks > fitting:
            self._evict(self.blocks - fitting)

    def _evict(self, blocks: int) -> None:
        """Evict up to `blocks` from the tail of the run that is first in order."""
        run = next(iter(self._order))
        self._shorten(run, min(blocks, run.blocks))

    def _shorten(self, run: CachedRun, blocks: int) -> None:
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
        self._drop_below(run)
        self._shorten(run, run.blocks)

    def _drop_below(self, run: CachedRun) -> None:
        """Remove all runs below a run, deepest first. Iterative, since a long conversation is a run per turn."""
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

    def statistics(self) -> dict[str, int]:
        return {
            "reserved_blocks": self.reserved_blocks,
            "unseen_blocks": self.unseen_blocks,
            "corrections": self.corrections,
            "size_bytes": self.size_bytes,
        }


def _depth_before(path: list[CachedRun]) -> int:
    return sum(run.blocks for run in path[:-1])


def _below(run: CachedRun) -> list[CachedRun]:
    return [*run.children.values()] if run.generated is None else [*run.children.values(), run.generated]


def _common(hashes: Sequence[int], chain: Sequence[int], at: int, longest: int) -> int:
    """Return how many blocks `hashes` and ``chain[at:]`` share: at least one, at most `longest`. The hashes are
    chained, so bisection finds the first difference."""
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
