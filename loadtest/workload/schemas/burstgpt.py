"""BurstGPT: times and lengths of requests to ChatGPT and GPT-4 over months.

Columns: ``Timestamp`` (seconds), ``Model``, ``Request tokens``, ``Response tokens``, ``Total tokens``, ``Log Type``. A
row without response tokens is a failure of the service, and left out. The model is the kind of a call. No text is
known, so no prompt shares any.

Source: HPMLL/BurstGPT, CC-BY-4.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from loadtest.workload.draw import Draws
from loadtest.workload.plan import Call, Session
from loadtest.workload.schemas.schema import Arrival, Moment, Row, Schema, Tokens, one_call_each
from loadtest.workload.text import Text


class Request(Row, frozen=True):
    timestamp: Moment = msgspec.field(name="Timestamp")
    model: str = msgspec.field(name="Model")
    request_tokens: Tokens = msgspec.field(name="Request tokens")
    response_tokens: Tokens = msgspec.field(name="Response tokens")

    @property
    def at_s(self) -> float:
        return self.timestamp

    def call(self, draws: Draws) -> Call:
        return Call(Text.of([draws.piece(self.request_tokens)]), draws.piece(self.response_tokens), kind=self.model)


def answered(arrivals: Iterable[Arrival], draws: Draws, begin_s: float, end_s: float) -> Iterator[Session]:
    kept = (one for one in arrivals if one.row.request_tokens and one.row.response_tokens)
    return one_call_each(kept, draws, begin_s, end_s)


SCHEMA = Schema("burstgpt", frozenset({"Timestamp", "Model", "Request tokens", "Response tokens"}), Request, answered)
