"""Mooncake's published traces (conversation, toolagent, arxiv, synthetic): lengths and block hashes, not the text.

A row has ``timestamp`` (ms), ``input_length``, ``output_length`` and ``hash_ids``: one per 512 tokens of the prompt,
the last one for a part of a block. Equal ids mean equal text from the prompt's start on. The trace does not name users,
so it is replayed as an open loop. The ids do not cover answers: in the next turn's prompt an answer has new ids.

Source: kvcache-ai/Mooncake, FAST25-release/traces, Apache-2.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from loadtest.workload.draw import FIRST_FRESH_ID, Draws
from loadtest.workload.plan import Call
from loadtest.workload.schemas.schema import Moment, OneCallEach, Schema, SomeTokens, Tokens
from loadtest.workload.text import Text

BlockId = Annotated[int, Meta(ge=0, lt=FIRST_FRESH_ID)]
BLOCK_TOKENS = 512


class Row(msgspec.Struct, frozen=True):
    """One request of the trace."""

    timestamp: Moment
    input_length: SomeTokens
    output_length: Tokens
    hash_ids: list[BlockId]

    def __post_init__(self) -> None:
        check_blocks(self.hash_ids, self.input_length, BLOCK_TOKENS)

    @property
    def at_s(self) -> float:
        return self.timestamp * 1e-3


def call(row: Row, draws: Draws) -> Call:
    prompt = text_of_blocks(row.hash_ids, row.input_length, BLOCK_TOKENS, draws)
    return Call(prompt, draws.piece(max(1, row.output_length)), kind="request")


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


SCHEMA = Schema(
    name="mooncake",
    fields=frozenset({"timestamp", "input_length", "output_length", "hash_ids"}),
    row_type=Row,
    sessions=OneCallEach(call),
    block_tokens=BLOCK_TOKENS,
)
