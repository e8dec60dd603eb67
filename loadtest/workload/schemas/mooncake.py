"""Mooncake's published traces (conversation, toolagent, arxiv, synthetic): lengths and block hashes, not the text.

A row has ``timestamp`` (ms), ``input_length``, ``output_length`` and ``hash_ids``: one per 512 tokens of the prompt,
the last one for a part of a block. Equal ids mean equal text from the prompt's start on. The trace does not name users,
so it is replayed as an open loop. The ids do not cover answers: in the next turn's prompt an answer has new ids.

Source: kvcache-ai/Mooncake, FAST25-release/traces, Apache-2.0.
"""

from __future__ import annotations

import msgspec

from loadtest.workload.draw import Draws
from loadtest.workload.plan import Call
from loadtest.workload.schemas.blocks import BlockId, check_blocks, text_of_blocks
from loadtest.workload.schemas.schema import Moment, OneCallEach, Schema, SomeTokens, Tokens

BLOCK_TOKENS = 512
TICK_S = 3.0
"""The conversation trace's timestamps are multiples of this tick, with about ten rows on each."""


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


SCHEMA = Schema(
    name="mooncake",
    about="Mooncake JSONL (conversation, toolagent, arxiv): 512-token blocks, open loop",
    fields=frozenset({"timestamp", "input_length", "output_length", "hash_ids"}),
    row_type=Row,
    sessions=OneCallEach(call),
    block_tokens=BLOCK_TOKENS,
)
