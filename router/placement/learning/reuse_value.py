"""Learn per model whether sessions return to their idle context soon enough to be worth its space in the cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heappop, heappush

from router.placement.learning.decaying import DecayingSum

FORGETTING = 0.99
"""Weight of the past at each context that was used again or expired: about the last hundred count."""
MODELS_KEPT = 64
CONTEXTS_KEPT = 16_384


class _Context:
    """Idle context of `tokens` that an answer left, until `until_s`. The prompt's last full block identifies it."""

    __slots__ = ("at_s", "blocks", "first", "last", "model", "tokens", "until_s", "waits")

    def __init__(self, model: str, hashes: Sequence[int], tokens: int, at_s: float, until_s: float) -> None:
        self.model = model
        self.first, self.last, self.blocks = hashes[0], hashes[-1], len(hashes)
        self.tokens = tokens
        self.at_s, self.until_s = at_s, until_s
        self.waits = True


class ReuseValue:
    """The benefit of keeping idle contexts, less the space that they held, in token-seconds per model.

    A context is kept for as long as its prefill would take. If its session returns within that time, the prefill is
    saved, less the time for which space was held. If not, the space was held for nothing. It does not matter whether
    the context was still in a cache, or where its next turn went. Otherwise a fleet whose caches hold nothing for long
    would look like a fleet whose sessions never return.
    """

    def __init__(self) -> None:
        self._balances: OrderedDict[str, DecayingSum] = OrderedDict()
        self._expiry: list[tuple[float, int, _Context]] = []
        self._entered = 0
        self._waiting: dict[int, dict[int, dict[int, _Context]]] = {}
        """By the first block's hash, the number of blocks, and the last block's hash. Among prompts with the same first
        block, one lookup per length suffices."""

    def rests(self, model: str, hashes: Sequence[int], tokens: int, now_s: float, until_s: float) -> None:
        """Record an ended answer that leaves `tokens` of idle context; its prompt has the full blocks `hashes`, at
        least one."""
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
        """Record a prompt with these blocks, which may use idle contexts again."""
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
        """Return whether contexts of `model` have saved more than they cost; False until one was used again."""
        balance = self._balances.get(model)
        return balance is not None and balance.value > 0.0

    def _count(self, context: _Context, gained_s: float) -> None:
        balance = self._balances.pop(context.model, None) or DecayingSum()
        balance.add(context.tokens * gained_s, FORGETTING)
        self._balances[context.model] = balance
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
