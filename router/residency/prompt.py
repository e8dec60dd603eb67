"""The identity of one request's prompt, as the router uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum


class PromptSource(StrEnum):
    """Where a prompt's identity came from."""

    RENDERED = "rendered"
    IDS = "ids"
    WORKER = "worker"
    TEXT = "text"


class Prompt:
    """A prompt's length and its chained block hashes, computed once per block size on demand.

    `tokens` is its length. When `exact`, hashes are over the engine's own token ids and compare equal with those
    the residency index made from KV events; otherwise they are over text (`PromptSource.TEXT`), `tokens` is an
    estimate, and they compare only with each other. `chain(b)` has ``tokens // b`` hashes, the i-th standing for
    the prefix that ends with block i.
    """

    __slots__ = ("_chains", "_hash", "exact", "multiple", "own_tokens", "shared_tokens", "source", "tokens")

    def __init__(
        self,
        tokens: int,
        source: PromptSource,
        chain: Callable[[int], Sequence[int]],
        *,
        multiple: bool = False,
        own_tokens: int | None = None,
        shared_tokens: int = 0,
    ) -> None:
        self.tokens = tokens
        self.source = source
        self.exact = source is not PromptSource.TEXT
        self.multiple = multiple
        """The body holds several prompts; `tokens` counts all, the hashes are those of the one that is reported of."""
        self.own_tokens = tokens if own_tokens is None else own_tokens
        """Tokens of the prompt that the hashes are of."""
        self.shared_tokens = shared_tokens
        """With so many of them a prompt begins that comes before it in the same body."""
        self._hash = chain
        self._chains: dict[int, Sequence[int]] = {}

    def chain(self, block_tokens: int) -> Sequence[int]:
        """Chained 64-bit hashes of the full blocks of `block_tokens` tokens each."""
        chain = self._chains.get(block_tokens)
        if chain is None:
            chain = self._chains[block_tokens] = self._hash(block_tokens)
        return chain
