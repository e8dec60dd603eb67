"""What every schema has: the fields it is known by, a row's type, and how rows become sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Generic, Protocol, TypeVar

from msgspec import Meta

from loadtest.workload.draw import Draws
from loadtest.workload.plan import Call, Session

MOST_TOKENS = 10_000_000
"""More than any model reads or says: a row that has them is broken, and would be drawn token by token."""
Tokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
SomeTokens = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
Moment = Annotated[float, Meta(ge=0, le=1e15)]
"""A time in whatever unit the schema has; milliseconds since 1970 fit, infinity does not."""


class Row(Protocol):
    """One row of a trace, its fields checked."""

    @property
    def at_s(self) -> float | None:
        """When it was recorded, on the trace's own clock; None for a row that is to be left out."""


RowT = TypeVar("RowT", bound=Row)


@dataclass(frozen=True, slots=True)
class Arrival(Generic[RowT]):
    """A row, its number in the file, and when it arrives in this draw (seconds on the trace's clock)."""

    number: int
    at_s: float
    row: RowT


Sessions = Callable[[Iterable[Arrival[RowT]], Draws, float, float], Iterator[Session]]
"""(arrivals in the file's order, draws, begin_s, end_s) -> sessions, of those that start in [begin_s, end_s)."""

MakesCall = Callable[[RowT, Draws], Call]
"""Turns one row into one call."""


@dataclass(frozen=True, slots=True)
class Schema(Generic[RowT]):
    """`fields` are the names that a row must have; `other_names` maps spellings that are also met onto them.

    `block_tokens` is the size of the blocks that the source tells of; 16, vLLM's own, where it tells of none. With
    `closed_loop` its sessions have several calls, which go on after the last of them has arrived.
    """

    name: str
    about: str
    fields: frozenset[str]
    row_type: type[RowT]
    sessions: Sessions[RowT]
    block_tokens: int = 16
    closed_loop: bool = False
    other_names: Mapping[str, str] = field(default_factory=dict)

    def named(self, record: Mapping[str, object]) -> dict[str, object]:
        """The record with every field under its usual name."""
        return {self.other_names.get(name, name): value for name, value in record.items()}


@dataclass(frozen=True, slots=True)
class OneCallEach(Generic[RowT]):
    """Each row is a session of one call: an open loop, for traces that do not say who asked."""

    call: MakesCall[RowT]

    def __call__(
        self, arrivals: Iterable[Arrival[RowT]], draws: Draws, begin_s: float, end_s: float
    ) -> Iterator[Session]:
        """As `Sessions` has it."""
        for arrival in arrivals:
            if begin_s <= arrival.at_s < end_s:
                yield Session(f"row-{arrival.number}", arrival.at_s, (self.call(arrival.row, draws),))
