"""Prompts of traces that publish a hash for each of their blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from loadtest.workload.draw import FIRST_FRESH_ID, Draws
from loadtest.workload.text import Text

BlockId = Annotated[int, Meta(ge=0, lt=FIRST_FRESH_ID)]


def check_blocks(hash_ids: Sequence[int], tokens: int, block_tokens: int) -> None:
    """Check that there is one id per block of the prompt; a partial block at its end may have an id or not.

    Raises:
        ValueError: there are more or fewer ids.
    """
    full, rest = divmod(tokens, block_tokens)
    if not full <= len(hash_ids) <= full + bool(rest):
        raise ValueError(
            f"{len(hash_ids)} hash_ids for {tokens} tokens: it takes one for each block of {block_tokens} tokens"
        )


def text_of_blocks(hash_ids: Sequence[int], tokens: int, block_tokens: int, draws: Draws) -> Text:
    """Return the prompt's text: a block's id names its text, and a partial block without an id is new text."""
    full, rest = divmod(tokens, block_tokens)
    pieces = [(id_, block_tokens) for id_ in hash_ids[:full]]
    if rest:
        pieces.append((hash_ids[full], rest) if len(hash_ids) > full else draws.piece(rest))
    return Text(tuple(pieces), tokens)
