"""The parts of every schema: the fields by which it is recognised, a row's type, and how rows become sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from loadtest.workload.draw import Draws
from loadtest.workload.plan import Call, Session

MOST_TOKENS = 10_000_000
"""No model reads or writes more tokens. A row with more is broken, and would be drawn token by token."""
Tokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
SomeTokens = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
Moment = Annotated[float, Meta(ge=0, le=1e15)]
"""A time in the schema's own unit. Milliseconds since 1970 fit, infinity does not."""


class Row(msgspec.Struct, frozen=True):
    """One row of a trace with checked fields."""

    @property
    def at_s(self) -> float:
        """The recorded time, in seconds on the trace's own clock."""
        raise NotImplementedError

    def call(self, draws: Draws) -> Call:
        """Return the call of a row that is a session of its own."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Arrival:
    """A row, its number in the file, and its arrival time in this draw (seconds on the trace's clock)."""

    number: int
    at_s: float
    row: Any


Sessions = Callable[[Iterable[Arrival], Draws, float, float], Iterator[Session]]
"""(arrivals in the file's order, draws, begin_s, end_s) -> the sessions that start in [begin_s, end_s)."""


def one_call_each(arrivals: Iterable[Arrival], draws: Draws, begin_s: float, end_s: float) -> Iterator[Session]:
    """Make each row a session of one call: an open loop, for traces that do not name the clients."""
    for arrival in arrivals:
        if begin_s <= arrival.at_s < end_s:
            yield Session(f"row-{arrival.number}", arrival.at_s, (arrival.row.call(draws),))


@dataclass(frozen=True, slots=True)
class Schema:
    """`fields` are the names that a row must have; `other_names` maps other spellings to them.

    `block_tokens` is the size of the source's blocks; 16, vLLM's own, if it has none. With `closed_loop` a session has
    several calls, and they continue after the last session has arrived.
    """

    name: str
    fields: frozenset[str]
    row_type: type[Row]
    sessions: Sessions = one_call_each
    block_tokens: int = 16
    closed_loop: bool = False
    other_names: Mapping[str, str] = field(default_factory=dict)

    def named(self, record: Mapping[str, object]) -> dict[str, object]:
        """Return the record with every field under its usual name."""
        return {self.other_names.get(name, name): value for name, value in record.items()}
