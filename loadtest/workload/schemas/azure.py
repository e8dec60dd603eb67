"""Azure's LLM inference traces of 2023 (code, conversation): times and lengths of requests to two services.

Columns: ``TIMESTAMP`` (a date and time with fractions of a second), ``ContextTokens``, ``GeneratedTokens``. The
trace does not say which text is shared, so no prompt shares any.

Source: Azure/AzurePublicDataset, CC-BY-4.0 (Splitwise, ISCA 2024).
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from loadtest.workload.draw import Draws
from loadtest.workload.plan import Call
from loadtest.workload.schemas.schema import Row, Schema, SomeTokens, Tokens
from loadtest.workload.text import Text


class Request(Row, frozen=True):
    """One request of the trace."""

    timestamp: str = msgspec.field(name="TIMESTAMP")
    context_tokens: SomeTokens = msgspec.field(name="ContextTokens")
    generated_tokens: Tokens = msgspec.field(name="GeneratedTokens")

    def __post_init__(self) -> None:
        datetime.fromisoformat(self.timestamp)

    @property
    def at_s(self) -> float:
        """Seconds since the epoch. A time without a zone is read as UTC, which has no clock changes."""
        at = datetime.fromisoformat(self.timestamp)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()

    def call(self, draws: Draws) -> Call:
        prompt = Text.of([draws.piece(self.context_tokens)])
        return Call(prompt, draws.piece(max(1, self.generated_tokens)), kind="request")


SCHEMA = Schema("azure", frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}), Request)
