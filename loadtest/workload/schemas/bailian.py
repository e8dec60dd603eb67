"""Qwen-Bailian's anonymised usage traces: block hashes of 16 tokens, and the parent of each request.

A row has ``chat_id``, ``parent_chat_id`` (-1 where a conversation begins), ``timestamp`` (s), ``input_length``,
``output_length``, ``type`` (text, search, image, file, ...: the kind), ``turn`` and ``hash_ids``. Equal ids mean equal
text of a block. As with Mooncake, an answer has new ids in the next turn's prompt.

A turn is sent after the answer before it, so rows that follow one another become a session. The recorded gap between
two turns contains the time of the answer and that of the user. The answer is assumed to take 0.03 s per token. A row
begins a session of its own if its parent is before the window, or has another successor already.

Source: alibaba-edu/qwen-bailian-usagetraces-anon, Apache-2.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

import msgspec

from loadtest.workload.draw import Draws
from loadtest.workload.plan import Call, Session
from loadtest.workload.schemas.blocks import BlockId, check_blocks, text_of_blocks
from loadtest.workload.schemas.schema import Arrival, Moment, Schema, SomeTokens, Tokens

BLOCK_TOKENS = 16
ANSWER_S_PER_TOKEN = 0.03
"""An assumption, because the trace has no answer times: a common speed of streams that people read."""


class Row(msgspec.Struct, frozen=True):
    """One request of the trace."""

    chat_id: int
    parent_chat_id: int
    timestamp: Moment
    input_length: SomeTokens
    output_length: Tokens
    type: str
    turn: int
    hash_ids: list[BlockId]

    def __post_init__(self) -> None:
        check_blocks(self.hash_ids, self.input_length, BLOCK_TOKENS)

    @property
    def at_s(self) -> float:
        return self.timestamp


def call(row: Row, draws: Draws) -> Call:
    prompt = text_of_blocks(row.hash_ids, row.input_length, BLOCK_TOKENS, draws)
    return Call(prompt, draws.piece(max(1, row.output_length)), kind=row.type)


def sessions(arrivals: Iterable[Arrival[Row]], draws: Draws, begin_s: float, end_s: float) -> Iterator[Session]:
    """Yield the sessions of the window, each row behind its parent."""
    open_: dict[int, list[Arrival[Row]]] = {}
    begun: list[list[Arrival[Row]]] = []
    for arrival in arrivals:
        if begin_s <= arrival.at_s < end_s:
            turns = open_.pop(arrival.row.parent_chat_id, None)
            if turns is None:
                turns = []
                begun.append(turns)
            turns.append(arrival)
            open_[arrival.row.chat_id] = turns
    return (_session(turns, draws) for turns in begun)


def _session(turns: list[Arrival[Row]], draws: Draws) -> Session:
    first = turns[0]
    calls = [call(first.row, draws)]
    for before, turn in pairwise(turns):
        answered_s = before.at_s + before.row.output_length * ANSWER_S_PER_TOKEN
        calls.append(replace(call(turn.row, draws), pause_s=max(0.0, turn.at_s - answered_s)))
    return Session(f"chat-{first.row.chat_id}", first.at_s, tuple(calls))


SCHEMA = Schema(
    name="bailian",
    about="Qwen-Bailian JSONL: 16-token blocks, turns follow their parents' answers",
    fields=frozenset(
        {"chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "type", "turn", "hash_ids"}
    ),
    row_type=Row,
    sessions=sessions,
    block_tokens=BLOCK_TOKENS,
    closed_loop=True,
)
