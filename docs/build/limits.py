"""Rows of docs/reference/limits.md: each limit with its unit, and the effect that a client sees.

A new setting gets a line in `SETTINGS`; a fixed limit that a client or a worker can reach gets one in `FIXED`. The
description of a setting is in `router.config.model`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import inspect as kinds

from backends.vllm.control import MAX_CALLS
from router.admin.http.connection import MOST_BODY_BYTES, MOST_PIPELINED, MOST_UNSENT_BYTES
from router.admin.operations import MAX_BODY_BYTES
from router.config.budgets import BYTE_BUDGETS
from router.config.model import Config
from router.config.sample import descriptions
from router.config.schema import bare, fields, root
from router.gateway.client import PIPELINE_BYTES
from router.gateway.flow.attempt.opening import HELD_BYTES, WHOLE_ANSWER_BYTES
from router.gateway.flow.deadlines import MIN_BYTES_PER_S, QUIET_LIMITS
from router.gateway.http.client.chunked_body import CHUNKS_PER_ITERATION, MAX_LINE_BYTES
from router.gateway.http.client.input import LINGER_BYTES, LINGER_S
from router.gateway.http.send_buffer_limit import WRITE_BUFFER_BYTES
from router.gateway.listen.accept import TLS_HANDSHAKE_S
from router.gateway.listen.connection_limit import BETWEEN_REQUESTS_S, HANDSHAKE_GRACE_S
from router.gateway.listen.sockets import KERNEL_UNSENT_BYTES
from router.hub.fetch import FETCH_S, MOST_FILE_BYTES
from router.hub.fetcher import MOST_MODELS
from router.placement.fleet import query_of_death
from router.placement.retry_budget import MAX_SENT_FAILURES
from router.placement.selection import LONGEST_HOLD_S
from router.process.children.child_client import MAX_REPLY_BYTES
from router.replicas.fleet_rows import MOST_KEPT
from router.replicas.messages import MOST_MESSAGE_BYTES
from router.replicas.state_sharing import MOST_BYTES as MOST_SHARED_BYTES
from router.requests import response_search
from router.requests.answers.sse import FIRST_EVENT_BYTES, INTRODUCTION_BYTES
from router.requests.body_buffer_limit import RESERVED_PART, SMALL_BODY_BYTES
from router.requests.pins import PINS
from router.requests.request_head import MAX_HEADER_LINES
from router.residency.exact.orphans import ORPHAN_BYTES
from router.residency.sequence import PENDING_BYTES
from router.telemetry import log_writer
from router.tokenization.body import multipart
from router.tokenization.body.bounds import MAX_BRACKETS, MAX_COMMAS, MAX_DECODED_BYTES
from router.tokenization.body.decoding import LONG_DIGITS_BYTES, MOST_FLOATS
from router.tokenization.body.intake import WHOLE_BYTES
from router.tokenization.body.json_spans import SMALL_FIELD_BYTES
from router.tokenization.body.large_json import MAX_MEMBERS
from router.tokenization.identification_deadline import LIMIT_S, MAX_LIMIT_S
from router.tokenization.preparing import MAX_ASKED_CHARS, MAX_CHARS_PER_TOKEN
from router.tokenization.remote_tokenizer import MAX_IN_FLIGHT, TIMEOUT_S
from router.tokenization.rendering import MAX_TEXT_BYTES
from router.tokenization.threads import MAX_WAITING_BYTES
from router.workers.event_replay import MAX_BUFFERED_BYTES
from router.workers.subscriber import MAX_QUEUED

Row = tuple[str, ...]
HEADS = ("limit", "default", "unit", "bounds", "what the client sees")
_BY_SIZE = "nothing: the request is placed by the size of its body"
_BY_TEXT = "nothing: the prompt is placed by its text, or by the size of its body"
FIXED_HEADS = ("bounds", "value", "unit", "what the client sees")

_ALONE = "nothing: the change is made on one gateway alone"
_NOTHING = "nothing"
_ANOTHER = "another worker is tried; 503 `worker_failed` if none is left"

SETTINGS: Mapping[str, tuple[str, str]] = {
    "limits.max_connections": ("connections", "the connection is closed without an answer"),
    "picker.max_streams": ("streams", "the endpoint picker refuses the stream with RESOURCE_EXHAUSTED"),
    "limits.max_header_bytes": ("bytes", "431 `headers_too_large`, connection closed"),
    "limits.max_body_bytes": ("bytes", "413 `body_too_large`, which names the limit in effect; connection closed"),
    "limits.max_buffered_body_bytes": ("bytes", "503 `too_many_requests` with `Retry-After`, or 413 `body_too_large`"),
    "limits.max_queued_requests": ("requests", "503 `too_many_requests` with `Retry-After`"),
    "limits.max_concurrent_requests": ("requests", "503 `concurrency_limit` with `Retry-After`"),
    "limits.max_requests_per_worker": ("requests", "503 `overloaded` with `Retry-After`"),
    "limits.max_buffered_response_bytes": ("bytes", "a client that does not read is cut off"),
    **{
        f"limits.{kind}.NAME.{name}": row
        for kind in ("tenants", "keys")
        for name, row in (
            ("max_concurrent_requests", ("requests", "429 `concurrent_requests_exceeded` with `Retry-After`")),
            ("requests_per_minute", ("requests", "429 `requests_per_minute_exceeded` with `Retry-After`")),
            ("tokens_per_minute", ("tokens", "429 `tokens_per_minute_exceeded` with `Retry-After`")),
            ("burst_requests", ("requests", "429 `requests_per_minute_exceeded` with `Retry-After`")),
            ("burst_tokens", ("tokens", "429 `request_above_token_limit` if one request is larger")),
        )
    },
    "tenants.NAME.max_queued_requests": ("requests", "503 `tenant_max_queued_requests` with `Retry-After`"),
    "tenants.NAME.max_buffered_body_bytes": (
        "bytes",
        "503 `tenant_max_buffered_body_bytes` with `Retry-After`, or 413 `body_too_large`",
    ),
    "timeouts.connect_s": ("seconds", _ANOTHER),
    "timeouts.first_event_s": ("seconds", _ANOTHER),
    "timeouts.stream_idle_s": (
        "seconds",
        "an error event `stream_idle_timeout` and the stream's end, or the connection is cut, unless the worker still "
        "generates tokens; a client that takes nothing for as long is cut off",
    ),
    "timeouts.total_s": ("seconds", "504 `total_timeout`, or an error event in a started stream"),
    "timeouts.client_header_s": ("seconds", "408 `request_timeout`, connection closed"),
    "timeouts.client_body_s": ("seconds", "408 `request_timeout`, connection closed"),
    "timeouts.client_idle_s": ("seconds", "the connection is closed"),
    "timeouts.upstream_idle_s": ("seconds", _NOTHING),
    "classes.NAME.max_wait_s": ("seconds", "429 `wait_too_long`, at arrival where it can be predicted"),
    "timeouts.queue_s": ("seconds", "503 `no_worker_available` with `Retry-After`"),
    "timeouts.header_delay_s": ("seconds", "status 200 and comments; a later failure is an error event"),
    "timeouts.comment_interval_s": ("seconds", "a comment"),
    "timeouts.drain_delay_s": ("seconds", _NOTHING),
    "timeouts.drain_s": ("seconds", "503 `shutting_down`, or an error event in a started stream"),
    "timeouts.drain_idle_s": ("seconds", "the connection is closed"),
    "timeouts.takeover_ready_s": ("seconds", _NOTHING),
    "retries.max_attempts": ("workers", "503 `worker_failed` or `overloaded`, with `Retry-After`"),
    "retries.query_of_death_s": ("seconds", "422 `request_crashes_workers`"),
    "residency.memo_bytes": ("bytes", "nothing: a forgotten prompt is tokenised again"),
    "residency.approximate_bytes": ("bytes", "nothing: less of a worker's cache is known"),
}
"""Settings that bound something: unit, and what the client sees when the bound is reached."""

NOT_LIMITS = frozenset({"limits.alone"})
"""Settings whose names begin like the names of limits."""

_MOST_BYTES = {budget.path: budget.most_bytes for budget in BYTE_BUDGETS}


@dataclass(frozen=True, slots=True)
class Fixed:
    """A limit that no setting changes."""

    bounds: str
    value: float
    unit: str
    client_sees: str


FIXED: tuple[Fixed, ...] = (
    Fixed("Body that may use the whole of `limits.max_buffered_body_bytes`", SMALL_BODY_BYTES, "bytes", _NOTHING),
    Fixed("Part of that budget kept for such bodies: one in", RESERVED_PART, "parts", _NOTHING),
    Fixed("Header lines of a request", MAX_HEADER_LINES, "lines", "431 `headers_too_large`, connection closed"),
    Fixed("A chunk's size line with its extensions", MAX_LINE_BYTES, "bytes", "400 `bad_request`, connection closed"),
    Fixed(
        "Chunks of a body read per event-loop iteration", CHUNKS_PER_ITERATION, "chunks", "they wait for the next one"
    ),
    Fixed("Pipelined requests read ahead on a connection", PIPELINE_BYTES, "bytes", "nothing: they are read later"),
    Fixed("Bytes read after a refusal", LINGER_BYTES, "bytes", "the connection is reset"),
    Fixed("Time of reading after a refusal", LINGER_S, "seconds", "the connection is reset"),
    Fixed("TLS handshake of a client", TLS_HANDSHAKE_S, "seconds", "the connection is closed"),
    Fixed("Unsent bytes of a stream at which its worker waits", WRITE_BUFFER_BYTES, "bytes", _NOTHING),
    Fixed("Unsent bytes of a connection in the kernel", KERNEL_UNSENT_BYTES, "bytes", _NOTHING),
    Fixed("Silence of a stream whose worker works", QUIET_LIMITS, "times `stream_idle_s`", "as `stream_idle_s`"),
    Fixed(
        "Answer in one piece that is kept until it is whole", WHOLE_ANSWER_BYTES, "bytes", "it is passed on as it comes"
    ),
    Fixed("Least rate of a stream while no event ends", MIN_BYTES_PER_S, "bytes/s", "as `timeouts.stream_idle_s`"),
    Fixed("Comments and half an event before the first event", HELD_BYTES, "bytes", _ANOTHER),
    Fixed("First event that is searched for an error", FIRST_EVENT_BYTES, "bytes", "it is forwarded as content"),
    Fixed("Events before the first token of a Responses stream", INTRODUCTION_BYTES, "bytes", "they are forwarded"),
    Fixed("Workers that fail with the request in hand", MAX_SENT_FAILURES, "workers", "503 `worker_failed`"),
    Fixed("Workers that may die of one body", query_of_death.MAX_DEATHS, "workers", "422 `request_crashes_workers`"),
    Fixed("Bodies whose workers' deaths are remembered", query_of_death.BODIES_KEPT, "bodies", _NOTHING),
    Fixed("Time that a policy may hold a request", LONGEST_HOLD_S, "seconds", "nothing: it is sent then"),
    Fixed("Stored responses whose worker is remembered", PINS, "responses", "older ones are looked for on the workers"),
    Fixed("Unknown responses that are looked for at once", response_search.SEARCHES, "searches", "further ones wait"),
    Fixed("Searches for responses that wait", response_search.WAITING, "searches", "503 `too_many_requests`"),
    Fixed("Workers that one search asks at once", response_search.AT_ONCE, "workers", "the others are asked later"),
    Fixed("A worker's answer to a search", response_search.ANSWER_S, "seconds", "503 `worker_failed` if none has it"),
    Fixed("Search for a response, with its wait", response_search.SEARCH_S, "seconds", "503 `worker_failed`"),
    Fixed("Responses that all workers denied, for 5 s", response_search.DENIALS, "responses", "they are asked again"),
    Fixed("Parts of a form", multipart.MAX_PARTS, "parts", "400 `invalid_body`"),
    Fixed("Head of a form's part", multipart.MAX_PART_HEAD_BYTES, "bytes", "400 `invalid_body`"),
    Fixed("Part of a form that is no file", multipart.MAX_FIELD_BYTES, "bytes", "400 `invalid_body`"),
    Fixed("`model` of a form", multipart.MAX_MODEL_BYTES, "bytes", "the rest of the name is not read"),
    Fixed(
        "JSON escapes of the first 256 characters in a form",
        multipart.MAX_ESCAPES,
        "escapes",
        "400 `transfer_params_not_allowed`, unless the caller may send such fields",
    ),
    Fixed("Text of a prompt that is tokenised", MAX_TEXT_BYTES, "bytes", "nothing: it is placed by its text"),
    Fixed(
        "Characters of a prompt that is tokenised, per token of the largest context window of its model",
        MAX_CHARS_PER_TOKEN,
        "characters",
        "nothing: it is placed by the size of its body",
    ),
    Fixed(
        "Body that is read in one go; of a larger one the prompt is decoded off the event loop",
        WHOLE_BYTES,
        "bytes",
        "nothing",
    ),
    Fixed("Objects and arrays in a body whose prompt is identified", MAX_BRACKETS, "brackets", _BY_SIZE),
    Fixed("Elements in a body whose prompt is identified", MAX_COMMAS, "commas", _BY_SIZE),
    Fixed("Floats in a body whose prompt is identified", MOST_FLOATS, "floats", _BY_SIZE),
    Fixed("Long integers in a body whose prompt is identified", LONG_DIGITS_BYTES, "bytes", _BY_SIZE),
    Fixed("Memory for the decoded form of one body", MAX_DECODED_BYTES, "bytes", _BY_SIZE),
    Fixed("Time to identify a prompt, of a body that is small", int(LIMIT_S * 1000), "ms", _BY_TEXT),
    Fixed("Time to identify a prompt, of any body", int(MAX_LIMIT_S * 1000), "ms", _BY_TEXT),
    Fixed("Prompt text that waits for one of the two tokenising threads", MAX_WAITING_BYTES, "bytes", _BY_TEXT),
    Fixed("Members of a body of more than 1 MiB", MAX_MEMBERS, "members", "400 `invalid_body`"),
    Fixed("Field of a large body beside the prompt", SMALL_FIELD_BYTES, "bytes", "400 `invalid_body`"),
    Fixed(
        "Prompt that a worker's /tokenize is asked about",
        MAX_ASKED_CHARS,
        "characters",
        "nothing: it is placed by its text",
    ),
    Fixed("Calls to /tokenize at once", MAX_IN_FLIGHT, "calls", "nothing: the prompt is placed by its text"),
    Fixed("One call to /tokenize", TIMEOUT_S, "seconds", "nothing: the prompt is placed by its text"),
    Fixed("Tokenizer file from the Hugging Face hub", MOST_FILE_BYTES, "bytes", "nothing: the worker tokenises"),
    Fixed("Fetch of a model's tokenizer files", FETCH_S, "seconds", "nothing: the worker tokenises"),
    Fixed("Models whose tokenizer files are fetched", MOST_MODELS, "models", "nothing: the worker tokenises"),
    Fixed("The admin API's changes that gateways share in Redis", MOST_SHARED_BYTES, "bytes", _ALONE),
    Fixed("Message of another gateway in Redis", MOST_MESSAGE_BYTES, "bytes", "nothing: it is not read"),
    Fixed("Load rows of other gateways that are kept", MOST_KEPT, "rows", "nothing: further ones do not count"),
    Fixed("The gateway's own calls to one worker at a time", MAX_CALLS, "calls", "nothing: more calls wait"),
    Fixed("Answer of one process of the gateway to another", MAX_REPLY_BYTES, "bytes", "503 problem document"),
    Fixed("Messages of KV events that wait, per publisher", MAX_QUEUED, "messages", "nothing: the worker keeps them"),
    Fixed("Replayed KV events that wait, per publisher", MAX_BUFFERED_BYTES, "bytes", "nothing: the replay ends"),
    Fixed("KV events of a publisher kept while missing ones are fetched", PENDING_BYTES, "bytes", _NOTHING),
    Fixed("Blocks of one view whose parent block is unknown", ORPHAN_BYTES, "bytes", _NOTHING),
    Fixed("Body of a request to the admin API", MAX_BODY_BYTES, "bytes", "413 problem document"),
    Fixed("Bodies of all requests to the admin port", MOST_BODY_BYTES, "bytes", "503 problem document"),
    Fixed("Unsent bytes of the admin port", MOST_UNSENT_BYTES, "bytes", "a client that does not read is cut off"),
    Fixed("Requests sent ahead on an admin connection", MOST_PIPELINED, "requests", "400, connection closed"),
    Fixed("Log lines that wait to be written", log_writer.MOST_LINES, "lines", _NOTHING),
    Fixed("Log lines that wait to be written, together", log_writer.MOST_BYTES, "bytes", _NOTHING),
    Fixed("TLS handshake that may not make room yet", HANDSHAKE_GRACE_S, "seconds", _NOTHING),
    Fixed("Idle connection that may not make room yet", BETWEEN_REQUESTS_S, "seconds", _NOTHING),
)


def setting_rows() -> Iterator[Row]:
    """Return one row for each entry of `SETTINGS`; `HEADS` names the cells."""
    known = {path: (default, described) for path, default, described in _walk(root(), Config(), ())}
    for path, (unit, sees) in SETTINGS.items():
        default, described = known[path]
        most = f", at most {_number(_MOST_BYTES[path])}" if path in _MOST_BYTES else ""
        yield f"`{path}`", f"{_number(default)}{most}", unit, " ".join(described.split()), sees


def fixed_rows() -> Iterator[Row]:
    """Return one row for each entry of `FIXED`; `FIXED_HEADS` names the cells."""
    for fixed in FIXED:
        yield fixed.bounds, _number(fixed.value), fixed.unit, fixed.client_sees


def settings_that_bound() -> Iterable[str]:
    """Return every setting that needs a row: limits, timeouts, and settings named like limits elsewhere."""
    for path, _, _ in _walk(root(), Config(), ()):
        name = path.rpartition(".")[2]
        named = name.startswith("max_") or name.endswith("_bytes")
        if (named or path.startswith(("limits.", "timeouts."))) and path not in NOT_LIMITS:
            yield path


def _walk(kind: kinds.StructType, defaults: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any, str]]:
    """Return every setting with its default and description; NAME stands for the key of a mapping."""
    for name, field in fields(kind).items():
        inner, default, here = bare(field.type), getattr(defaults, name, None), (*path, name)
        if isinstance(inner, kinds.DictType) and isinstance(section := bare(inner.value_type), kinds.StructType):
            yield from _walk(section, _defaults(section), (*here, "NAME"))
        elif isinstance(inner, kinds.StructType):
            yield from _walk(inner, default, here)
        else:
            yield ".".join(here), default, descriptions(kind.cls)[name]


def _defaults(section: kinds.StructType) -> Any:
    """Return a section with its defaults, or None if one of its settings is required."""
    return None if any(field.required for field in section.fields) else section.cls()


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,g}"
    return f"{value:,}" if isinstance(value, int) else "none" if value is None else str(value)
