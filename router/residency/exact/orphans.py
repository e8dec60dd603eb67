"""Blocks announced before their parent block: kept, up to a bound, until the parent is known."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from router.residency.chain import TOKEN_BYTES, extend_chain
from router.residency.exact.block_copies import TierCopies

ORPHAN_BYTES = 4_194_304
"""Bound on the orphans of one view; the oldest are dropped first."""

_LATEST = 64
"""Runs compared with a reported block to find its children; about 1 us each."""
_BLOCK_BYTES = 120
_RUN_BYTES = 600


@dataclass(frozen=True, slots=True)
class OrphanRun:
    """One announcement with an unknown parent: packed tokens, engine keys and extra keys of a run of blocks.

    `own` are the blocks' hashes, if the publisher sent them in place of tokens (`ExactCache.accepts_hashes`).
    """

    parent: int
    tier_copies: TierCopies
    engines: Sequence[int]
    token_bytes: bytes
    extras: Sequence[bytes] | None
    new_copies: bool
    own: Sequence[int] | None = None

    def hashes_after(self, parent: int, block_size: int) -> Sequence[int]:
        return extend_chain(parent, self.token_bytes, block_size, self.extras) if self.own is None else self.own

    def begins(self, chain: Sequence[int], parent: int, block_size: int) -> bool:
        """Return whether the run, placed after `parent`, agrees with `chain` over the length of the shorter one."""
        reach = min(len(chain), len(self.engines))
        own = self.own
        if own is None:
            own = extend_chain(parent, self.token_bytes[: reach * block_size * TOKEN_BYTES], block_size, self.extras)
        return list(own[:reach]) == list(chain[:reach])

    @property
    def size_bytes(self) -> int:
        return _RUN_BYTES + len(self.token_bytes) + _BLOCK_BYTES * len(self.engines)


class OrphanBlocks:
    """Orphans by the parent that they wait for, and the removals that arrived in the meantime."""

    def __init__(self) -> None:
        self.added = 0
        """Number of runs ever added."""
        self._latest: deque[tuple[int, OrphanRun]] = deque(maxlen=_LATEST)
        self._by_parent: OrderedDict[int, list[OrphanRun]] = OrderedDict()
        self._present: dict[int, int] = {}
        self._removed: dict[tuple[int, int], int] = {}
        self.size_bytes = 0
        self.waiting_blocks = 0
        self.dropped_blocks = 0

    def __len__(self) -> int:
        return self.waiting_blocks

    def __bool__(self) -> bool:
        return bool(self._by_parent)

    def add(self, orphans: OrphanRun) -> None:
        """Keep a run; drop the oldest runs over the bound."""
        self._by_parent.setdefault(orphans.parent, []).append(orphans)
        self.added += 1
        self._latest.append((self.added, orphans))
        self.size_bytes += orphans.size_bytes
        self.waiting_blocks += len(orphans.engines)
        for engine in orphans.engines:
            self._present[engine] = self._present.get(engine, 0) + 1
        while self.size_bytes > ORPHAN_BYTES and self._by_parent:
            _, runs = self._by_parent.popitem(last=False)
            for run in runs:
                self._leave(run)
                self.take_removals(run)
                self.dropped_blocks += len(run.engines)

    def remove(self, tier_copies: TierCopies, engines: Iterable[int]) -> int:
        """Record removals of waiting blocks; return how many of the blocks are unknown here."""
        unknown = 0
        for engine in engines:
            place = (id(tier_copies), engine)
            if self._removed.get(place, 0) < self._present.get(engine, 0):
                self._removed[place] = self._removed.get(place, 0) + 1
            else:
                unknown += 1
        return unknown

    def since(self, added: int) -> Iterator[OrphanRun]:
        """Yield the waiting runs that were added after the first `added`, latest first."""
        for number, run in reversed(self._latest):
            if number <= added:
                return
            yield run

    def adopt(self, parent: int) -> list[OrphanRun]:
        runs = self._by_parent.pop(parent, [])
        for run in runs:
            self._leave(run)
        return runs

    def take_removals(self, run: OrphanRun) -> list[int]:
        found = []
        for engine in run.engines:
            place = (id(run.tier_copies), engine)
            if place in self._removed:
                found.append(engine)
                self._removed[place] -= 1
                if not self._removed[place]:
                    del self._removed[place]
        return found

    def _leave(self, run: OrphanRun) -> None:
        # Remove the run from the latest runs too, or adopted runs would use memory that is not counted.
        self._latest = deque([entry for entry in self._latest if entry[1] is not run], _LATEST)
        self.size_bytes -= run.size_bytes
        self.waiting_blocks -= len(run.engines)
        for engine in run.engines:
            self._present[engine] -= 1
            if not self._present[engine]:
                del self._present[engine]

    def clear(self) -> None:
        self._by_parent.clear()
        self._latest.clear()
        self._present.clear()
        self._removed.clear()
        self.size_bytes = self.waiting_blocks = 0
