"""The identity of one request's prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum


class PromptSource(StrEnum):
    RENDERED = "rendered"
    IDS = "ids"
    WORKER = "worker"
    TEXT = "text"


class Prompt:
    """A prompt's length and its chained block hashes, computed on demand and once per block size.

    `tokens` is its length. If `exact`, the hashes are over the engine's own token ids and compare equal with the hashes
    in the index, made from KV events. Otherwise (`PromptSource.TEXT`) the hashes are over text and compare only with
    each other, and `tokens` is an estimate. `chain(b)` has ``tokens // b`` hashes; the i-th stands for the prefix that
    ends with block i.
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
        """The body holds several prompts: `tokens` counts all, and the hashes are of the prompt whose cached tokens are
        reported."""
        self.own_tokens = tokens if own_tokens is None else own_tokens
        """Tokens of the prompt that is hashed."""
        self.shared_tokens = shared_tokens
        """Length of the prefix that the prompt shares with an earlier prompt of the same body."""
        self._hash = chain
        self._chains: dict[int, Sequence[int]] = {}

    def chain(self, block_tokens: int) -> Sequence[int]:
        """Return the chained 64-bit hashes of the full blocks of `block_tokens` tokens each."""
        chain = self._chains.get(block_tokens)
        if chain is None:
            chain = self._chains[block_tokens] = self._hash(block_tokens)
        return chain

    def usable_chain(self, block_tokens: int) -> tuple[Sequence[int], int]:
        """Return the hashes, and how many of their blocks a worker can reuse: it always computes the last token."""
        chain = self.chain(block_tokens)
        return chain, max(0, min(len(chain), (self.own_tokens - 1) // block_tokens))
