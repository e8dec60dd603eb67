"""Mooncake's published traces (conversation, toolagent, arxiv, synthetic): lengths and block hashes, not the text.

A row has ``timestamp`` (ms), ``input_length``, ``output_length`` and ``hash_ids``: one per 512 tokens of the prompt,
the last one for a part of a block. Equal ids mean equal text from the prompt's start on. The trace does not name users,
so it is replayed as an open loop. The ids do not cover answers: in the next turn's prompt an answer has new ids.

Source: kvcache-ai/Mooncake, FAST25-release/traces, Apache-2.0.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from loadtest.workload.draw import FIRST_FRESH_ID, Draws
from loadtest.workload.plan import Call
from loadtest.workload.schemas.schema import Moment, Row, Schema, SomeTokens, Tokens
from loadtest.workload.text import Text

BlockId = Annotated[int, Meta(ge=0, lt=FIRST_FRESH_ID)]
BLOCK_TOKENS = 512


class Request(Row, frozen=True):
    """One request of the trace."""

    id_tokens: ClassVar[int] = BLOCK_TOKENS
    tick_s: ClassVar[float] = 1e-3
    """Seconds per unit of `timestamp`."""

    timestamp: Moment
    input_length: SomeTokens
    output_length: Tokens
    hash_ids: list[BlockId]

    def __post_init__(self) -> None:
        full, rest = divmod(self.input_length, self.block_tokens)
        if not full <= len(self.hash_ids) <= full + bool(rest):
            raise ValueError(
                f"{len(self.hash_ids)} hash_ids for {self.input_length} tokens: it takes one for each block of"
                f" {self.block_tokens} tokens"
            )

    @property
    def block_tokens(self) -> int:
        """Tokens for which one id stands."""
        return self.id_tokens

    @property
    def at_s(self) -> float:
        return self.timestamp * self.tick_s

    def call(self, draws: Draws) -> Call:
        """Return the call: a block's id names its text, and a partial block without an id is new text."""
        full, rest = divmod(self.input_length, self.block_tokens)
        pieces = [(id_, self.block_tokens) for id_ in self.hash_ids[:full]]
        if rest:
            pieces.append((self.hash_ids[full], rest) if len(self.hash_ids) > full else draws.piece(rest))
        prompt = Text(tuple(pieces), self.input_length)
        return Call(prompt, draws.piece(max(1, self.output_length)), kind="request")


FIELDS = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})
SCHEMA = Schema("mooncake", FIELDS, Request, block_tokens=BLOCK_TOKENS)
