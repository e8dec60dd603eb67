"""Session traces of agents, replayed as a closed loop: each round waits for the answer before it, and for its tool.

A row (CSV or JSONL) is a round: ``session_id`` (or ``id``), ``arrival_time`` (of the session, in ms, in each of its
rows; or ``arrival_time_ms``), ``round`` (or ``round_idx``; counted from any number), ``prefix_len`` (tokens of the
conversation so far, answers included, that the round keeps), ``input_len`` (new tokens behind them), ``output_len``
and ``tool_wait_after_ms`` (from this round's answer to the next round).

A prefix longer than the conversation so far contains text that the trace does not have, such as a system prompt or a
round that was not recorded. The missing part counts as new text. The output length is the length of the model's answer,
not a limit that the client set.

Source: the schema of uw-syfi/TraceLab's session replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from loadtest.workload.draw import Draws
from loadtest.workload.plan import Call, Session
from loadtest.workload.schemas.schema import Arrival, Moment, Row, Schema, Tokens
from loadtest.workload.text import Text


class Round(Row, frozen=True):
    session_id: str | int
    arrival_time: Moment
    round: int
    prefix_len: Tokens
    input_len: Tokens
    output_len: Tokens
    tool_wait_after_ms: Moment

    def __post_init__(self) -> None:
        if not self.prefix_len + self.input_len:
            raise ValueError("prefix_len and input_len are both 0: nothing is asked")

    @property
    def at_s(self) -> float:
        """The session's arrival time, in seconds on the trace's clock."""
        return self.arrival_time * 1e-3


def sessions(arrivals: Iterable[Arrival], draws: Draws, begin_s: float, end_s: float) -> Iterator[Session]:
    """Yield the whole sessions that arrive in the window; a session's rows may be anywhere in the file."""
    starts: dict[str | int, float] = {}
    rounds: dict[str | int, list[Round]] = {}
    for arrival in arrivals:
        id_ = arrival.row.session_id
        if begin_s <= starts.setdefault(id_, arrival.at_s) < end_s:
            rounds.setdefault(id_, []).append(arrival.row)
    for id_, rows in rounds.items():
        rows.sort(key=lambda row: row.round)
        yield Session(f"session-{id_}", starts[id_], tuple(_calls(rows, draws)))


def _calls(rows: list[Round], draws: Draws) -> Iterator[Call]:
    said, pause_s = Text((), 0), 0.0
    for row in rows:
        kept = said.first(row.prefix_len)
        missing = row.prefix_len - kept.tokens
        prompt = kept.plus(*(draws.piece(tokens) for tokens in (missing, row.input_len) if tokens))
        answer = draws.piece(max(1, row.output_len))
        yield Call(prompt, answer, pause_s, kind="agent")
        said, pause_s = prompt.plus(answer), row.tool_wait_after_ms * 1e-3


SCHEMA = Schema(
    name="sessions",
    fields=frozenset(
        {"session_id", "arrival_time", "round", "prefix_len", "input_len", "output_len", "tool_wait_after_ms"}
    ),
    row_type=Round,
    sessions=sessions,
    closed_loop=True,
    other_names={"id": "session_id", "arrival_time_ms": "arrival_time", "round_idx": "round"},
)
