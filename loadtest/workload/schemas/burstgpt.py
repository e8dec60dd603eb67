"""BurstGPT: two to four months of requests to ChatGPT and GPT-4 at one university; times and lengths only.

Columns: ``Timestamp`` (whole seconds from the first day's midnight), ``Model``, ``Request tokens``,
``Response tokens``, ``Total tokens``, ``Log Type`` ("Conversation log": kind ``chat``, "API log": kind ``api``; may be
missing). Requests that failed have no response tokens; they are left out. The trace does not say which text is shared,
so no prompt shares any.

Source: HPMLL/BurstGPT, CC-BY-4.0 (Wang et al., arXiv 2401.17644).
"""

from __future__ import annotations

import msgspec

from loadtest.workload.draw import Draws
from loadtest.workload.plan import Call
from loadtest.workload.schemas.schema import Moment, OneCallEach, Schema, Tokens
from loadtest.workload.text import Text

KINDS = {"Conversation log": "chat", "API log": "api"}


class Row(msgspec.Struct, frozen=True):
    """One request of the trace, without the model's name."""

    timestamp_s: Moment = msgspec.field(name="Timestamp")
    request_tokens: Tokens = msgspec.field(name="Request tokens")
    response_tokens: Tokens = msgspec.field(name="Response tokens")
    log_type: str = msgspec.field(name="Log Type", default="")

    @property
    def at_s(self) -> float | None:
        return self.timestamp_s if self.request_tokens and self.response_tokens else None


def call(row: Row, draws: Draws) -> Call:
    prompt = Text.of([draws.piece(row.request_tokens)])
    return Call(prompt, draws.piece(row.response_tokens), kind=KINDS.get(row.log_type, "request"))


SCHEMA = Schema(
    name="burstgpt",
    about="BurstGPT CSV: times and lengths, nothing shared, open loop",
    fields=frozenset({"Timestamp", "Request tokens", "Response tokens"}),
    row_type=Row,
    sessions=OneCallEach(call),
)
