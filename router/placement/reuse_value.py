"""Whether idle contexts return soon enough to be worth their space in a cache, learned per model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heappop, heappush

FORGETTING = 0.99
"""Weight of the past at each context that returned or did not: about the last hundred count."""
MODELS_KEPT = 64
CONTEXTS_KEPT = 16_384


class _Context:
    """Context of `tokens` that an answer left. Its prompt's last full block identifies it; it counts until
    `until_s`."""

    __slots__ = ("at_s", "blocks", "first", "last", "model", "tokens", "until_s", "waits")

    def __init__(self, model: str, hashes: Sequence[int], tokens: int, at_s: float, until_s: float) -> None:
        self.model = model
        self.first, self.last, self.blocks = hashes[0], hashes[-1], len(hashes)
        self.tokens = tokens
        self.at_s, self.until_s = at_s, until_s
        self.waits = True


class ReuseValue:
    """What returning contexts have saved, less the space that all contexts have held, in token-seconds.

    Each counts for as long as its prefill would take. One that returns within that time has saved it, and held space
    until then; one that does not has held space all the while for nothing. Whether it was still in a cache, and where
    its next turn went, does not matter. Otherwise a fleet whose caches hold nothing for long would look like one whose
    sessions never return.
    """

    def __init__(self) -> None:
        self._balances: OrderedDict[str, float] = OrderedDict()
        self._expiry: list[tuple[float, int, _Context]] = []
        self._entered = 0
        self._waiting: dict[int, dict[int, dict[int, _Context]]] = {}
        """By the first block's hash, the number of blocks, and the last one's hash: among prompts that begin alike,
        one look for each length is enough."""

    def rests(self, model: str, hashes: Sequence[int], tokens: int, now_s: float, until_s: float) -> None:
        """Record an ended answer whose context of `tokens` begins with the blocks of `hashes`, at least one."""
        context = _Context(model, hashes, tokens, now_s, until_s)
        alike = self._waiting.setdefault(context.first, {}).setdefault(context.blocks, {})
        before = alike.get(context.last)
        if before is not None:
            before.waits = False
        alike[context.last] = context
        self._entered += 1
        heappush(self._expiry, (until_s, self._entered, context))
        if len(self._expiry) > CONTEXTS_KEPT:
            self._lost(heappop(self._expiry)[2])

    def arrived(self, hashes: Sequence[int], now_s: float) -> None:
        """Record a prompt of these blocks."""
        while self._expiry and self._expiry[0][0] < now_s:
            self._lost(heappop(self._expiry)[2])
        by_length = self._waiting.get(hashes[0]) if hashes else None
        if by_length is None:
            return
        size = len(hashes)
        found = [alike.get(hashes[blocks - 1]) for blocks, alike in by_length.items() if blocks <= size]
        for one in found:
            if one is not None:
                self._leave(one)
                self._count(one, one.until_s - now_s)

    def pays(self, model: str) -> bool:
        """Return whether contexts have saved more than they have held; False until one has returned."""
        return self._balances.get(model, 0.0) > 0.0

    def _count(self, context: _Context, gained_s: float) -> None:
        balance = self._balances.pop(context.model, 0.0)
        self._balances[context.model] = balance * FORGETTING + context.tokens * gained_s
        if len(self._balances) > MODELS_KEPT:
            self._balances.popitem(last=False)

    def _lost(self, context: _Context) -> None:
        if context.waits:
            self._leave(context)
            self._count(context, context.at_s - context.until_s)

    def _leave(self, context: _Context) -> None:
        context.waits = False
        by_length = self._waiting[context.first]
        del by_length[context.blocks][context.last]
        if not by_length[context.blocks]:
            del by_length[context.blocks]
        if not by_length:
            del self._waiting[context.first]
