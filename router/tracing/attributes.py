"""Every attribute of a span and of the resource, by OpenTelemetry's semantic conventions where they have a name.

GenAI: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/. Their names may still change; this table is the
one place to follow. Names that begin with ``warmroute.`` are our own.
"""

from __future__ import annotations

from typing import Final

import msgspec

_CHARACTERS: Final = 256
"""Longer text is cut, because clients choose some of it."""


class Attribute:
    """One attribute; its methods return it with a value as OTLP's JSON."""

    __slots__ = ("_start", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._start = '{"key":' + quoted(name) + ',"value":{'

    def text(self, value: str) -> str:
        return self._start + '"stringValue":' + quoted(value) + "}}"

    def whole(self, value: int) -> str:
        return f'{self._start}"intValue":"{value}"}}}}'

    def real(self, value: float) -> str:
        return f'{self._start}"doubleValue":{value!r}}}}}'


def quoted(value: str) -> str:
    """Return text as JSON, cut to `_CHARACTERS`. Lone surrogates, which a body may bring, are replaced."""
    kept = value[:_CHARACTERS]
    if not kept.isascii():
        kept = kept.encode("utf-8", "replace").decode()
    return msgspec.json.encode(kept).decode()


OPERATION: Final = Attribute("gen_ai.operation.name")
PROVIDER: Final = Attribute("gen_ai.provider.name")
REQUEST_MODEL: Final = Attribute("gen_ai.request.model")
RESPONSE_MODEL: Final = Attribute("gen_ai.response.model")
MAX_TOKENS: Final = Attribute("gen_ai.request.max_tokens")
CONVERSATION: Final = Attribute("gen_ai.conversation.id")
INPUT_TOKENS: Final = Attribute("gen_ai.usage.input_tokens")
OUTPUT_TOKENS: Final = Attribute("gen_ai.usage.output_tokens")
CACHED_TOKENS: Final = Attribute("gen_ai.usage.cache_read.input_tokens")
METHOD: Final = Attribute("http.request.method")
HTTP_ROUTE: Final = Attribute("http.route")
STATUS: Final = Attribute("http.response.status_code")
SERVER: Final = Attribute("server.address")
ERROR: Final = Attribute("error.type")
SERVICE: Final = Attribute("service.name")

REQUEST_ID: Final = Attribute("warmroute.request_id")
ROUTE: Final = Attribute("warmroute.route")
POLICY: Final = Attribute("warmroute.policy")
WORKER: Final = Attribute("warmroute.worker")
REASON: Final = Attribute("warmroute.decision.reason")
CANDIDATES: Final = Attribute("warmroute.decision.candidates")
WAITS_FOR: Final = Attribute("warmroute.wait.reason")
ATTEMPT: Final = Attribute("warmroute.attempt")
LEG: Final = Attribute("warmroute.handover.leg")
PREDICTED: Final = Attribute("warmroute.predicted_cached_tokens")
RESIDENCY: Final = Attribute("warmroute.residency")
FIRST_TOKEN_S: Final = Attribute("warmroute.time_to_first_token")

OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""GenAI's name of what a path does. Spans of other paths have HTTP's attributes alone."""
