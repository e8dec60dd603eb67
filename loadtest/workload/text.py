"""Prompts without their words: pieces that stand for text, and the chain of block hashes over them.

Routing and a worker's cache need only a prompt's length, and where it begins like another prompt. A piece gives both
with two numbers, so a conversation of 200,000 tokens is a few hundred pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct

from xxhash import xxh3_64_intdigest

Piece = tuple[int, int]
"""(id, tokens): the first `tokens` tokens of the text that the id names. 0 <= id < 2**63."""

SEED = 0x7761726D_74657874
"""The parent of a text's first block; fixed, so that runs repeat."""

_SPAN = Struct("<QQQ").pack


@dataclass(frozen=True, slots=True)
class Text:
    """Pieces in order, none of them empty; `tokens` is their sum.

    Equal ids mean equal text as far as both pieces reach: (7, 100) begins like (7, 300). A piece starts at its text's
    beginning, so (7, 100), (7, 200) contains the same hundred tokens twice.
    """

    pieces: tuple[Piece, ...]
    tokens: int

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Text:
        """Return a text of these pieces, without the empty ones."""
        kept = tuple(piece for piece in pieces if piece[1])
        return cls(kept, sum(tokens for _, tokens in kept))

    def plus(self, *pieces: Piece) -> Text:
        """Return this text with more pieces at its end, such as an answer or the next question."""
        pieces = tuple([piece for piece in pieces if piece[1]])
        return Text(self.pieces + pieces, self.tokens + sum([tokens for _, tokens in pieces]))

    def first(self, tokens: int) -> Text:
        """Return its first `tokens` tokens, or all of it if it is shorter."""
        if tokens >= self.tokens:
            return self
        kept: list[Piece] = []
        room = tokens
        for id_, size in self.pieces:
            if not room:
                break
            kept.append((id_, min(size, room)))
            room -= kept[-1][1]
        return Text(tuple(kept), tokens)


def chain(text: Text, block_tokens: int) -> list[int]:
    """Return chained 64-bit hashes of the full blocks of `text`; a partial block at its end has none.

    Two texts share as many first hashes as first full blocks, whatever their pieces.
    """
    return extend([], text, block_tokens)


def extend(links: Sequence[int], text: Text, block_tokens: int) -> list[int]:
    """Return the chain of `text`, given the chain of a text with which it begins: only the missing blocks are hashed.

    A block's hash covers the packed (id, offset, tokens) of every span in it, seeded with its predecessor's hash. It is
    one loop for speed, because every block of every prompt comes through it.
    """
    grown = list(links)
    parent = grown[-1] if grown else SEED
    skip_tokens = len(grown) * block_tokens
    begun, room = b"", block_tokens
    for id_, tokens in text.pieces:
        if skip_tokens >= tokens:
            skip_tokens -= tokens
            continue
        offset, skip_tokens = skip_tokens, 0
        while tokens - offset >= room:
            parent = xxh3_64_intdigest(begun + _SPAN(id_, offset, room), seed=parent)
            grown.append(parent)
            offset += room
            begun, room = b"", block_tokens
        if offset < tokens:
            begun += _SPAN(id_, offset, tokens - offset)
            room -= tokens - offset
    return grown
