"""Asks one vLLM endpoint for its identity and its state."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import TypeVar

import msgspec

from backends.foreign_json import read_json
from backends.vllm.control import LargeAnswerError, RefusedError, WorkerClient
from backends.vllm.control import ProbeError as ProbeError
from backends.vllm.metrics import MAX_ENGINES, MetricsPage, StrangePage, metrics_steps
from backends.worker import Endpoint, KvEventSource, ServedModel, WorkerFacts

MAX_HEALTH_BYTES = 65_536
"""The body of ``/health`` says nothing, and that of ``/version`` is short."""
MAX_SOURCES_BYTES = 262_144
"""One event source has about 250 bytes."""
MAX_MODELS = 4_096
"""Models of one worker, adapters included."""
_BRACKETS_PER_MODEL = 4
"""vLLM writes two, the second for permissions."""
_MAX_VERSION_CHARACTERS = 128

_WILDCARD = re.compile(r"tcp://(?:\*|0\.0\.0\.0|\[::\]|::):(\d+)")
_TCP_PORT = re.compile(r"(tcp://.+:)(\d+)")
_MAX_HWM = 1_000_000
_MAX_RANK = 1 << 30

T = TypeVar("T")


class _Version(msgspec.Struct):
    version: str


class _Card(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Card]


class _Source(msgspec.Struct):
    enable_kv_cache_events: bool = True
    publisher: str | None = "zmq"
    endpoint: str | None = None
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    topic: str = ""


async def quick_probe(client: WorkerClient, endpoint: Endpoint, *, timeout_s: float = 2.0) -> None:
    """Ask ``/health`` only, or ``/v1/models`` if that path does not exist.

    Raises:
        ProbeError: any result but a timely 200.
    """
    try:
        await client.get(endpoint, "/health", timeout_s, MAX_HEALTH_BYTES)
    except RefusedError as refusal:
        if refusal.status == 503:
            raise ProbeError("/health answered 503: the engine is dead or still loading") from None
        if refusal.status != 404 or not await _lists_models(client, endpoint, timeout_s):
            raise


async def _lists_models(client: WorkerClient, endpoint: Endpoint, timeout_s: float) -> bool:
    """Return whether a server with OpenAI's API answers; it may lack ``/health``."""
    try:
        body = await client.get(endpoint, "/v1/models", timeout_s)
        return bool(_cards(body))
    except RefusedError as refusal:
        return refusal.status in (401, 403)


async def read_metrics(client: WorkerClient, endpoint: Endpoint, *, timeout_s: float = 2.0) -> MetricsPage:
    """Read ``/metrics``, of at most the client's `metrics_bytes`.

    Raises:
        ProbeError: no timely, bounded answer, or one without vLLM's gauges.
    """
    try:
        page = await _in_steps(metrics_steps(await client.get(endpoint, "/metrics", timeout_s, client.metrics_bytes)))
    except StrangePage as error:
        raise ProbeError(f"{error}: is this a vLLM server?") from None
    except LargeAnswerError:
        raise ProbeError(f"/metrics is larger than {client.metrics_bytes} bytes") from None
    if not page.loads and not page.caches:
        raise ProbeError("/metrics has no vllm:num_requests_running: is this a vLLM server?")
    return page


async def _in_steps(steps: Generator[None, None, T]) -> T:
    """Run each step in an iteration of its own of the event loop."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


async def probe(
    client: WorkerClient,
    endpoint: Endpoint,
    *,
    events: KvEventSource | None = None,
    timeout_s: float = 2.0,
) -> WorkerFacts:
    """Learn about `endpoint`: health, version, models, caches and event sources. Each question has `timeout_s`.

    `events` is the configured publisher of rank 0, used instead of asking. Facts that vLLM may refuse to give
    (``/version``, models behind an API key, metrics, event sources) stay empty, and the notes name them. The KV
    connector is asked for by `server_info.read_connector`.

    Raises:
        ProbeError: not healthy, or not a vLLM server.
    """
    await quick_probe(client, endpoint, timeout_s=timeout_s)
    return await learn(client, endpoint, events=events, timeout_s=timeout_s)


async def learn(
    client: WorkerClient, endpoint: Endpoint, *, events: KvEventSource | None = None, timeout_s: float = 2.0
) -> WorkerFacts:
    notes: list[str] = []
    version = await _version(client, endpoint, timeout_s, notes)
    models = await _models(client, endpoint, timeout_s, notes)
    page = await _page(client, endpoint, timeout_s, notes)
    facts = WorkerFacts(
        version=version,
        models=models,
        caches=dict(page.caches) if page else {},
        sleeping=page.sleeping if page else False,
        engines=page.engines if page else (),
    )
    if events is not None:
        sources = configured_sources(events, endpoint, facts.ranks)
    else:
        sources = await _event_sources(client, endpoint, timeout_s, notes, facts.engines)
    return replace(facts, event_sources=sources, notes=tuple(notes))


def configured_sources(first: KvEventSource, endpoint: Endpoint, ranks: int) -> tuple[KvEventSource, ...]:
    """Return `first` and the publishers of the further ranks on the ports after it, as vLLM numbers them."""
    return tuple(
        replace(
            first,
            rank=rank,
            endpoint=_next_port(connectable(first.endpoint, endpoint), rank),
            replay_endpoint=_next_port(connectable(first.replay_endpoint, endpoint), rank)
            if first.replay_endpoint
            else None,
        )
        for rank in range(ranks)
    )


def connectable(address: str, endpoint: Endpoint) -> str:
    """Return `address` with a wildcard host (``*``, ``0.0.0.0``, ``[::]``) replaced by the host of `endpoint`."""
    if match := _WILDCARD.fullmatch(address):
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        return f"tcp://{host}:{match[1]}"
    return address


def _next_port(address: str, rank: int) -> str:
    match = _TCP_PORT.fullmatch(address)
    return f"{match[1]}{int(match[2]) + rank}" if match else address


async def _version(client: WorkerClient, endpoint: Endpoint, timeout_s: float, notes: list[str]) -> str | None:
    try:
        body = await client.get(endpoint, "/version", timeout_s, MAX_HEALTH_BYTES)
        return _decode(body, _Version, "/version").version[:_MAX_VERSION_CHARACTERS]
    except RefusedError as refusal:
        notes.append(refusal.reason)
        return None


async def _models(
    client: WorkerClient, endpoint: Endpoint, timeout_s: float, notes: list[str]
) -> tuple[ServedModel, ...]:
    try:
        body = await client.get(endpoint, "/v1/models", timeout_s)
    except RefusedError as refusal:
        if refusal.status not in (401, 403):
            raise
        notes.append(f"/v1/models answered {refusal.status} (the worker has an API key): its models are unknown")
        return ()
    cards = _cards(body)
    return tuple(ServedModel(card.id, card.root, card.parent, card.max_model_len) for card in cards)


def _cards(body: bytes) -> list[_Card]:
    """Return the models, of a list that is not longer than any worker's: decoding takes at most some ms."""
    few = body.count(b"{") <= _BRACKETS_PER_MODEL * MAX_MODELS
    cards = _decode(body, _Models, "/v1/models").data if few else ()
    if not few or len(cards) > MAX_MODELS:
        raise ProbeError(f"/v1/models lists more than {MAX_MODELS} models")
    return list(cards)


async def _page(client: WorkerClient, endpoint: Endpoint, timeout_s: float, notes: list[str]) -> MetricsPage | None:
    try:
        return await read_metrics(client, endpoint, timeout_s=timeout_s)
    except ProbeError as error:
        notes.append(f"no cache size and no load: {error.reason}")
        return None


async def _event_sources(
    client: WorkerClient, endpoint: Endpoint, timeout_s: float, notes: list[str], engines: tuple[int, ...]
) -> tuple[KvEventSource, ...]:
    try:
        body = await client.get(endpoint, "/kv_event_sources", timeout_s, MAX_SOURCES_BYTES)
        answer = _decode(body, dict[str, _Source], "/kv_event_sources")
        if len(answer) > MAX_ENGINES:
            raise ProbeError(f"/kv_event_sources names more than {MAX_ENGINES} ranks")
    except RefusedError as refusal:
        if refusal.status == 404:
            notes.append(
                "no /kv_event_sources (vLLM before 0.33): set the worker's kv_events.endpoint if it publishes events"
            )
        else:
            notes.append(refusal.reason)
        return ()
    except ProbeError as error:
        notes.append(error.reason)
        return ()
    sources = _usable(answer, endpoint, notes, engines)
    if not answer:
        notes.append("publishes no KV events: start vLLM with --kv-events-config")
    return sources


def _usable(
    answer: Mapping[str, _Source], endpoint: Endpoint, notes: list[str], engines: tuple[int, ...]
) -> tuple[KvEventSource, ...]:
    """Return usable sources. Ranks count from 0 within the endpoint, as in `MetricsPage`, whose `engines` are given."""
    sources = []
    keys = sorted(answer, key=lambda key: int(key) if key.isdecimal() else _MAX_RANK)
    rank_of = {str(engine): rank for rank, engine in enumerate(engines)}
    if not rank_of.keys() >= set(keys):
        rank_of = {key: rank for rank, key in enumerate(keys)}
    for key in keys:
        rank, source = rank_of[key], answer[key]
        if not source.enable_kv_cache_events or source.publisher != "zmq":
            notes.append(f"rank {key} publishes no KV events (publisher {source.publisher!r})")
        elif not key.isdecimal() or not source.endpoint or source.endpoint.startswith("inproc:"):
            notes.append(f"rank {key} names no reachable event publisher ({source.endpoint!r})")
        else:
            sources.append(_source(rank, source, source.endpoint, endpoint))
    return tuple(sources)


def _source(rank: int, source: _Source, address: str, endpoint: Endpoint) -> KvEventSource:
    return KvEventSource(
        rank=rank,
        endpoint=connectable(address, endpoint),
        replay_endpoint=connectable(source.replay_endpoint, endpoint) if source.replay_endpoint else None,
        topic=source.topic,
        buffer_steps=max(0, source.buffer_steps),
        hwm=min(max(1, source.hwm), _MAX_HWM),
    )


def _decode(body: bytes, shape: type[T], path: str) -> T:
    try:
        return read_json(body, shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = "HTML" if body.lstrip()[:1] == b"<" else f"not vLLM's JSON ({error})"
        raise ProbeError(f"{path} answered {what}: is this a vLLM server?") from None
