"""SGLang's cache-aware rule: longest match while requests are balanced, fewest requests when they are not."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from policies.params import Params
from policies.view import Decision, Edge, EdgeKind, FleetView, RequestView, WorkerId, WorkerView

_TREES_KEPT = 1_024
"""Workers remembered, by last use: a fleet whose workers come and go must not fill memory."""


class CacheAwareParams(Params, frozen=True):
    """Defaults as published with sglang-router 0.1 to 0.3, but for the tree's bound, which is in blocks here."""

    balance_abs_threshold: Annotated[int, Meta(ge=0)] = 64
    balance_rel_threshold: Annotated[float, Meta(ge=1)] = 1.5
    cache_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    max_tree_blocks: Annotated[int, Meta(ge=1)] = 65_536


class _Tree(msgspec.Struct):
    """Prefixes sent to one worker. Chained hashes make a set of blocks a tree: a block implies its ancestors."""

    blocks: OrderedDict[int, None] = msgspec.field(default_factory=OrderedDict)

    def match(self, hashes: Sequence[int]) -> int:
        """Blocks of the longest known prefix."""
        for count, block in enumerate(hashes):
            if block not in self.blocks:
                return count
        return len(hashes)

    def insert(self, hashes: Sequence[int], bound: int) -> None:
        """Remember a prompt. Tails are touched first, so that leaves are also evicted first."""
        for block in reversed(hashes):
            self.blocks[block] = None
            self.blocks.move_to_end(block)
        while len(self.blocks) > bound:
            self.blocks.popitem(last=False)


class CacheAware:
    """If max - min requests > 64 and max > 1.5 min: fewest requests. Else, if the best match covers more than half
    of the prompt: the best match. Else: the smallest tree.

    The tree is the rule's own approximation, fed by its own choices and nothing else, as in the original; it
    compares block hashes where the original compares characters. Source: sglang-router, policies/cache_aware.rs.
    """

    params_type = CacheAwareParams

    def __init__(self, params: CacheAwareParams, rng: random.Random) -> None:
        self._params = params
        self._trees: dict[WorkerId, _Tree] = {}

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Rank by the criterion that applies; all workers are ranked by it, so alternatives follow the same rule."""
        requests = [view.running_requests for view in fleet.workers]
        most, least = max(requests), min(requests)
        if most - least > self._params.balance_abs_threshold and most > self._params.balance_rel_threshold * least:
            return _by(fleet, lambda view: view.running_requests, f"imbalanced ({least} to {most} requests)")
        matches = {view.id: self._match(view.id, request) for view in fleet.workers}
        best = max(matches.values()) * request.block_tokens / max(1, request.prompt_tokens)
        if best > self._params.cache_threshold:
            return _by(fleet, lambda view: -matches[view.id], f"longest match ({best:.0%} of the prompt)")
        return _by(fleet, lambda view: self._size(view.id), f"smallest tree (best match {best:.0%})")

    def observe(self, edge: Edge) -> None:
        """Remember where the prompt went."""
        if edge.kind is not EdgeKind.BOOKED:
            return
        tree = self._trees.pop(edge.worker, None) or _Tree()
        self._trees[edge.worker] = tree
        tree.insert(edge.request.block_hashes, self._params.max_tree_blocks)
        if len(self._trees) > _TREES_KEPT:
            del self._trees[next(iter(self._trees))]

    def _match(self, worker: WorkerId, request: RequestView) -> int:
        tree = self._trees.get(worker)
        return tree.match(request.block_hashes) if tree else 0

    def _size(self, worker: WorkerId) -> int:
        tree = self._trees.get(worker)
        return len(tree.blocks) if tree else 0


def _by(fleet: FleetView, cost: Callable[[WorkerView], int], reason: str) -> Decision:
    ranked = sorted(fleet.workers, key=cost)
    return Decision(tuple(view.id for view in ranked), reason)
