"""Mooncake's published traces (conversation, toolagent, arxiv, synthetic): lengths and block hashes, not the text.

A row has ``timestamp`` (ms), ``input_length``, ``output_length`` and ``hash_ids``: one per 512 tokens of the prompt,
the last one for a part of a block. Equal ids mean equal text from the prompt's start on. The trace does not name users,
so it is replayed as an open loop. The ids do not cover answers: in the next turn's prompt an answer has new ids.

Source: kvcache-ai/Mooncake, FAST25-release/traces, Apache-2.0.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import msgspec

from loadtest.workload.draw import Draws
from loadtest.workload.plan import Call
from loadtest.workload.schemas.blocks import BlockId, check_blocks, text_of_blocks
from loadtest.workload.schemas.reading import typed_rows
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
        """The recorded time, in seconds on the trace's clock."""
        return self.timestamp * 1e-3


def call(row: Row, draws: Draws) -> Call:
    """Return the row as one request."""
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


def read_rows(path: Path) -> list[Row]:
    """Return all rows of a file, which may be compressed.

    Raises:
        TraceError: the file is missing or unreadable, or is no Mooncake trace.
    """
    return [row for _, row in typed_rows(path, SCHEMA)]


def spread(rows: Iterable[Row], rng: Random, rate_scale: float = 1.0) -> Iterator[tuple[float, Row]]:
    """Yield arrival times from 0 on with their rows, in order. Each row comes within its tick, `rate_scale` as fast."""
    timed = sorted(((row.at_s + rng.uniform(0.0, TICK_S), row) for row in rows), key=lambda pair: pair[0])
    start_s = timed[0][0] if timed else 0.0
    for at_s, row in timed:
        yield (at_s - start_s) / rate_scale, row


def prompt_ids(row: Row) -> array[int]:
    """Return token ids for a row's prompt. Each token gets its block's id, so that equal prefixes have equal ids."""
    ids = array("I")
    for block_id in row.hash_ids:
        ids.extend(array("I", [block_id]) * BLOCK_TOKENS)
    return ids[: row.input_length]
