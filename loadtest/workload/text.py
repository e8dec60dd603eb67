"""Prompts without their words: pieces that stand for text, and the chain of block hashes over them.

What routing and a worker's cache need of a prompt is its length and where it begins like another one. A piece gives
both at the cost of two numbers, so a conversation of 200,000 tokens is a few hundred of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct

from xxhash import xxh3_64_intdigest

Piece = tuple[int, int]
"""(id, tokens): the first `tokens` tokens of the text that the id names. 0 <= id < 2**63."""

SEED = 0x7761726D_74657874
"""Stands before a text's first block; fixed, so that runs repeat."""

_SPAN = Struct("<QQQ").pack


@dataclass(frozen=True, slots=True)
class Text:
    """Pieces in order, none of them empty; `tokens` is their sum.

    Equal ids mean equal text as far as both pieces reach: (7, 100) begins like (7, 300). A piece starts at its text's
    beginning, so (7, 100), (7, 200) says the same hundred tokens twice.
    """

    pieces: tuple[Piece, ...]
    tokens: int

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Text:
        """These pieces, empty ones left out, their tokens counted."""
        kept = tuple(piece for piece in pieces if piece[1])
        return cls(kept, sum(tokens for _, tokens in kept))

    def plus(self, *pieces: Piece) -> Text:
        """This text with more behind it: an answer, the next question."""
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
    """Chained 64-bit hashes of the full blocks of `text`; a part of a block at its end has none.

    Two texts share so many first hashes as they share first full blocks, whatever pieces they are made of.
    """
    return extend([], text, block_tokens)


def extend(links: Sequence[int], text: Text, block_tokens: int) -> list[int]:
    """The chain of `text`, given that of a text it begins with: only the blocks that `links` lacks are hashed.

    A block's hash is that of the (id, offset, tokens) of every span in it, packed, after its predecessor's. Written as
    one loop: every block of every prompt comes through here.
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
