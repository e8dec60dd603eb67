"""Agentic traces with one conversation per row, as SemiAnalysis publishes them (WEKA): a closed loop.

A row has ``id``, ``block_size`` (64), ``hash_id_scope`` and ``requests``, each with ``t`` (seconds from the
conversation's start), ``in`` and ``out`` (tokens) and ``hash_ids``. A subagent (``type: subagent``) has requests of its
own, which are played where they stand. Ids of the scope ``local`` mean the same text within their row only. Rows have
no times: all conversations are there at once, and a rate or a concurrency spreads them. A request follows the answer
before it after the recorded difference of ``t``, which contains the recorded answer's time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from loadtest.workload.draw import FIRST_FRESH_ID, Draws
from loadtest.workload.plan import Call, Session
from loadtest.workload.schemas.schema import Arrival, Moment, Row, Schema, SomeTokens, Tokens
from loadtest.workload.text import Text

MOST_IDS = 1 << 32
"""Local ids are below it, so that a row's number and an id make one id."""
Local = Annotated[int, Meta(ge=0, lt=MOST_IDS)]


class Request(msgspec.Struct, frozen=True):
    """One request of a conversation, or a subagent with requests of its own."""

    t: Moment = 0.0
    in_: Tokens = msgspec.field(name="in", default=0)
    out: Tokens = 0
    hash_ids: list[Local] = []
    type: str = ""
    requests: list[Any] = []


class Conversation(Row, frozen=True):
    id: str | int
    requests: list[Request]
    block_size: SomeTokens = 64
    hash_id_scope: str = "local"

    def __post_init__(self) -> None:
        list(self.flat)  # requests of subagents are checked, too

    @property
    def at_s(self) -> float:
        return 0.0

    @property
    def flat(self) -> Iterator[Request]:
        """Yield requests in order, with those of subagents where they stand."""
        return _flat(self.requests)


def _flat(requests: Iterable[Request]) -> Iterator[Request]:
    for one in requests:
        if one.in_:
            yield one
        yield from _flat(msgspec.convert(one.requests, list[Request]))


def sessions(arrivals: Iterable[Arrival], draws: Draws, begin_s: float, end_s: float) -> Iterator[Session]:
    for arrival in arrivals:
        if begin_s <= arrival.at_s < end_s and (calls := tuple(_calls(arrival, draws))):
            yield Session(f"conversation-{arrival.row.id}", arrival.at_s, calls)


def _calls(arrival: Arrival, draws: Draws) -> Iterator[Call]:
    row: Conversation = arrival.row
    scope = arrival.number % (FIRST_FRESH_ID // MOST_IDS) * MOST_IDS if row.hash_id_scope == "local" else 0
    before_s: float | None = None
    for one in row.flat:
        full = min(len(one.hash_ids), one.in_ // row.block_size)
        pieces = [(scope + id_, row.block_size) for id_ in one.hash_ids[:full]]
        prompt = Text.of([*pieces, draws.piece(one.in_ - full * row.block_size)])
        pause_s = 0.0 if before_s is None else max(0.0, one.t - before_s)
        yield Call(prompt, draws.piece(max(1, one.out)), pause_s, kind=one.type or "agent")
        before_s = one.t


SCHEMA = Schema("agentic", frozenset({"id", "requests"}), Conversation, sessions, block_tokens=64, closed_loop=True)
