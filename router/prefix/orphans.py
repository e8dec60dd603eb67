"""Blocks announced before the block they follow: kept, bounded, until their parent is known."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from router.prefix.chain import TOKEN_BYTES, extend_chain
from router.prefix.holdings import Shelf

ORPHAN_BYTES = 4_194_304
"""Bound on the orphans of one view; the oldest go first."""

_BLOCK_BYTES = 120
_RUN_BYTES = 600


@dataclass(frozen=True, slots=True)
class Orphans:
    """One announcement whose parent is not known: packed tokens, engine keys and extra keys of a run of blocks.

    `own` are the blocks' hashes where the publisher told them in place of tokens (`ExactView.accepts_hashes`).
    """

    parent: int
    shelf: Shelf
    engines: Sequence[int]
    token_bytes: bytes
    extras: Sequence[bytes] | None
    new_copies: bool
    own: Sequence[int] | None = None

    def hashes_after(self, parent: int, block_size: int) -> Sequence[int]:
        """Hashes of its blocks if their parent's is this."""
        return extend_chain(parent, self.token_bytes, block_size, self.extras) if self.own is None else self.own

    def first_after(self, parent: int, block_size: int) -> int:
        """That of the first one."""
        if self.own is not None:
            return self.own[0]
        return extend_chain(parent, self.token_bytes[: block_size * TOKEN_BYTES], block_size, self.extras)[0]

    @property
    def size_bytes(self) -> int:
        """Rough memory of this run."""
        return _RUN_BYTES + len(self.token_bytes) + _BLOCK_BYTES * len(self.engines)


class Orphanage:
    """Orphans by the parent they wait for, and the removals that came meanwhile."""

    __slots__ = ("_by_parent", "_present", "_removed", "dropped_blocks", "size_bytes", "waiting_blocks")

    def __init__(self) -> None:
        self._by_parent: OrderedDict[int, list[Orphans]] = OrderedDict()
        self._present: dict[int, int] = {}
        self._removed: dict[tuple[int, int], int] = {}
        self.size_bytes = 0
        self.waiting_blocks = 0
        self.dropped_blocks = 0

    def __len__(self) -> int:
        return self.waiting_blocks

    def __bool__(self) -> bool:
        return bool(self._by_parent)

    def add(self, orphans: Orphans) -> None:
        """Keep a run, dropping the oldest ones over the bound."""
        self._by_parent.setdefault(orphans.parent, []).append(orphans)
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

    def remove(self, shelf: Shelf, engines: Iterable[int]) -> int:
        """Note removals of blocks that wait here; returns how many were of blocks unknown here too."""
        unknown = 0
        for engine in engines:
            place = (id(shelf), engine)
            if self._removed.get(place, 0) < self._present.get(engine, 0):
                self._removed[place] = self._removed.get(place, 0) + 1
            else:
                unknown += 1
        return unknown

    def latest(self, parents: int) -> list[tuple[int, Orphans]]:
        """The parents waited for since the shortest time, and a run that waits for each."""
        return [(parent, self._by_parent[parent][0]) for parent in islice(reversed(self._by_parent), parents)]

    def adopt(self, parent: int) -> list[Orphans]:
        """Take out the runs that waited for `parent`."""
        runs = self._by_parent.pop(parent, [])
        for run in runs:
            self._leave(run)
        return runs

    def take_removals(self, run: Orphans) -> list[int]:
        """Take out the removals that came for blocks of `run` while it waited."""
        found = []
        for engine in run.engines:
            place = (id(run.shelf), engine)
            if place in self._removed:
                found.append(engine)
                self._removed[place] -= 1
                if not self._removed[place]:
                    del self._removed[place]
        return found

    def _leave(self, run: Orphans) -> None:
        self.size_bytes -= run.size_bytes
        self.waiting_blocks -= len(run.engines)
        for engine in run.engines:
            self._present[engine] -= 1
            if not self._present[engine]:
                del self._present[engine]

    def clear(self) -> None:
        """Forget all."""
        self._by_parent.clear()
        self._present.clear()
        self._removed.clear()
        self.size_bytes = self.waiting_blocks = 0
