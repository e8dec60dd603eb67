"""Spans as OTLP's JSON (opentelemetry-proto, trace/v1): written as text, because objects would cost several times more.

Ids are hexadecimal, which is where OTLP differs from the JSON of protocol buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import getrandbits
from typing import Final

import msgspec

from router.tracing.attributes import Attribute

INTERNAL: Final = 1
SERVER: Final = 2
CLIENT: Final = 3
_FAILED: Final = '"status":{"code":2}}'
_UNSET: Final = '"status":{}}'


def new_trace_id() -> str:
    """Return a random trace id that is not zero."""
    return f"{getrandbits(128) or 1:032x}"


def new_span_id() -> str:
    """Return a random span id that is not zero."""
    return f"{getrandbits(64) or 1:016x}"


def span(
    trace_id: str,
    span_id: str,
    parent_id: str,
    title: str,
    kind: int,
    start_s: float,
    end_s: float,
    attributes: str,
    failed: bool = False,
) -> str:
    """Return one span. Times are seconds since 1970.

    `title` is the name as JSON, quotes included. `attributes` are written ones, joined by commas. `parent_id` may be
    empty.
    """
    start_ns = int(start_s * 1e9)
    end_ns = int(end_s * 1e9) if end_s > start_s else start_ns
    return (
        f'{{"traceId":"{trace_id}","spanId":"{span_id}","parentSpanId":"{parent_id}","name":{title},"kind":{kind},'
        f'"startTimeUnixNano":"{start_ns}","endTimeUnixNano":"{end_ns}","attributes":[{attributes}],'
        f"{_FAILED if failed else _UNSET}"
    )


def envelope(resource: Mapping[str, str], version: str) -> tuple[bytes, bytes]:
    """Return what comes before and after the spans of a request to a receiver."""
    described = ",".join([Attribute(name).text(value) for name, value in resource.items()])
    scope = msgspec.json.encode({"name": "warmroute", "version": version}).decode()
    before = f'{{"resourceSpans":[{{"resource":{{"attributes":[{described}]}},"scopeSpans":[{{"scope":{scope},"spans":['
    return before.encode(), b"]}]}]}"
