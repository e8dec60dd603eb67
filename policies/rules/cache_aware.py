"""SGLang's cache-aware rule: longest match while requests are balanced, fewest requests when they are not."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from policies.params import Params
from policies.ranking import Fact, Terms, by_keys, least, most, running_requests
from policies.view import Decision, FleetView, LifecycleEvent, LifecycleEventKind, RequestView, WorkerId

_TREES_KEPT = 1_024
"""Workers remembered, by last use: a fleet whose workers come and go must not fill memory."""


class CacheAwareParams(Params, frozen=True):
    """Defaults as published with sglang-router 0.3 and vllm-router 0.1.17, but for the tree's bound."""

    balance_abs_threshold: Annotated[
        int, Meta(ge=0, description="Load decides if most - fewest requests exceed this ...")
    ] = 64
    balance_rel_threshold: Annotated[
        float, Meta(ge=1, description="... and the most are more than this multiple of the fewest.")
    ] = 1.5
    cache_threshold: Annotated[
        float, Meta(ge=0, le=1, description="Share of the prompt that the best match must exceed to count.")
    ] = 0.3
    on_miss: Annotated[
        Literal["fewest_requests", "smallest_tree"],
        Meta(description="Where a prompt without such a match goes; the second is the rule of earlier releases."),
    ] = "fewest_requests"
    max_tree_blocks: Annotated[
        int, Meta(ge=1, description="Blocks remembered per worker (the original: characters).")
    ] = 65_536


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
    """If most - fewest requests > 64 and most > 1.5 x fewest: fewest requests. Else, if the best match covers more than
    0.3 of the prompt: the best match. Else: fewest requests. Ties: the worker that joined first.

    The match is against the rule's own tree of the prompts sent to each worker, fed by its own choices only, as in the
    original; it compares block hashes where the original compares characters. Where several workers have the same
    best match, the original takes any of them.

    Source: sglang-router 0.3 (sgl-model-gateway/src/policies/cache_aware.rs) and vllm-router 0.1.17
    (src/policies/cache_aware.rs), compared with both request by request in docs/results/peers.md. Earlier
    releases sent a miss to the worker with the smallest tree, at a threshold of 0.5: `on_miss` and `cache_threshold`
    bring that back.
    """

    params_type = CacheAwareParams
    terms: ClassVar[Mapping[str, str]] = {
        "match": "Prompt tokens in the tree of prompts sent to the worker.",
        "tree_blocks": "Size of that tree.",
        "requests": "Requests placed on the worker.",
    }

    def __init__(self, params: CacheAwareParams, rng: random.Random) -> None:
        self._params = params
        self._trees: dict[WorkerId, _Tree] = {}

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Rank by the criterion that applies; all workers are ranked by it, so alternatives follow the same rule."""
        matches = [self._match(worker, request) for worker in fleet.ids]
        key, reason = self._criterion(matches, request, fleet)
        tokens = [match * request.block_tokens for match in matches]
        terms: Terms = {"match": tokens, "tree_blocks": self._size, "requests": running_requests}
        return by_keys(fleet, (key,), reason, terms)

    def _criterion(self, matches: Sequence[int], request: RequestView, fleet: FleetView) -> tuple[Fact, str]:
        params = self._params
        largest, fewest = most(fleet, running_requests), least(fleet, running_requests)
        if largest - fewest > params.balance_abs_threshold and largest > params.balance_rel_threshold * fewest:
            return running_requests, f"imbalanced ({fewest} to {largest} requests)"
        share = max(matches) * request.block_tokens / max(1, request.prompt_tokens)
        if share > params.cache_threshold:
            return [-match for match in matches], f"longest match ({share:.0%} of the prompt)"
        if params.on_miss == "smallest_tree":
            return self._size, f"smallest tree (best match {share:.0%})"
        return running_requests, f"fewest requests (best match {share:.0%})"

    def observe(self, event: LifecycleEvent) -> None:
        if event.kind is not LifecycleEventKind.RESERVED:
            return
        tree = self._trees.pop(event.worker, None) or _Tree()
        self._trees[event.worker] = tree
        tree.insert(event.request.block_hashes, self._params.max_tree_blocks)
        if len(self._trees) > _TREES_KEPT:
            del self._trees[next(iter(self._trees))]

    def _match(self, worker: WorkerId, request: RequestView) -> int:
        tree = self._trees.get(worker)
        return tree.match(request.block_hashes) if tree else 0

    def _size(self, of: FleetView) -> list[int]:
        return [len(tree.blocks) if (tree := self._trees.get(worker)) else 0 for worker in of.ids]
