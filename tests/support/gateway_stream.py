"""A gateway's side of ext_proc streams, over loopback, and a picker process over workers that exist on paper."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import msgspec

from backends.worker import LoadReport, ServedModel, WorkerFacts
from router.app import GatewayProcess
from router.config.model import Config, WorkerConfig
from router.picker.protocol.ext_proc_pb2 import (
    HeaderMap,
    HeaderValue,
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    ProcessingMode,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
)
from router.picker.protocol.names import DESTINATION, LB_NAMESPACE, PROCESS, SUBSET, SUBSET_NAMESPACE
from router.picker.server import PickerServer
from tests.support.gateway_rig import FACTS
from tests.support.waiting import eventually

DUPLEX, BUFFERED, STREAMED, NONE = (
    ProcessingMode.FULL_DUPLEX_STREAMED,
    ProcessingMode.BUFFERED,
    ProcessingMode.STREAMED,
    ProcessingMode.NONE,
)
Headers = Sequence[tuple[str, str | bytes]]
LIMIT_S = 20.0


def chat(text: str = "hello", model: str = "m", **fields: Any) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": text}], **fields}).encode()


def header_map(pairs: Headers) -> HeaderMap:
    return HeaderMap(
        headers=[HeaderValue(key=name, raw_value=v.encode() if isinstance(v, str) else v) for name, v in pairs]
    )


def request_headers(
    *,
    method: str = "POST",
    path: str = "/v1/chat/completions",
    headers: Headers = (),
    mode: int | None = DUPLEX,
    response_mode: int = NONE,
    ends: bool = False,
    subset: Any = None,
) -> ProcessingRequest:
    own: Headers = [(":method", method), (":path", path), (":authority", "gateway"), *headers]
    message = ProcessingRequest(request_headers=HttpHeaders(headers=header_map(own), end_of_stream=ends))
    if mode is not None:
        message.protocol_config.CopyFrom(
            ProtocolConfiguration(request_body_mode=mode, response_body_mode=response_mode)  # type: ignore[arg-type]
        )
    if subset is not None:
        message.metadata_context.filter_metadata[SUBSET_NAMESPACE].update({SUBSET: subset})
    return message


def body(part: bytes, *, ends: bool = True) -> ProcessingRequest:
    return ProcessingRequest(request_body=HttpBody(body=part, end_of_stream=ends))


def trailers() -> ProcessingRequest:
    return ProcessingRequest(request_trailers=HttpTrailers())


def response_headers(status: int = 200, *, headers: Headers = (), served: str | None = None, ends: bool = False) -> Any:
    own = header_map([(":status", str(status)), *headers])
    message = ProcessingRequest(response_headers=HttpHeaders(headers=own, end_of_stream=ends))
    if served is not None:
        message.metadata_context.filter_metadata[LB_NAMESPACE].update({f"{DESTINATION}-served": served})
    return message


def response_body(part: bytes, *, ends: bool = False) -> ProcessingRequest:
    return ProcessingRequest(response_body=HttpBody(body=part, end_of_stream=ends))


class GatewayStream:
    def __init__(self, channel: Any) -> None:
        self.call = channel.stream_stream(PROCESS)()

    async def send(self, *messages: ProcessingRequest) -> GatewayStream:
        for message in messages:
            await self.call.write(message.SerializeToString())
        return self

    async def next(self, limit_s: float = LIMIT_S) -> ProcessingResponse | None:
        """Return the next answer; None at the end of the stream."""
        raw = await asyncio.wait_for(self.call.read(), limit_s)
        return ProcessingResponse.FromString(raw) if isinstance(raw, bytes) else None

    async def rest(self) -> list[ProcessingResponse]:
        """Return the answers up to the end of the stream, which must be OK."""
        found = []
        while (answer := await self.next()) is not None:
            found.append(answer)
        assert await self.call.code() is grpc.StatusCode.OK
        return found

    async def silent(self, for_s: float = 0.15) -> bool:
        """Return whether nothing comes for a while. No later answer can be read."""
        reading = asyncio.ensure_future(self.call.read())
        done, _ = await asyncio.wait({reading}, timeout=for_s)
        return not done


def common(answer: ProcessingResponse) -> Any:
    return answer.request_headers.response if answer.HasField("request_headers") else answer.request_body.response


def set_headers(answer: ProcessingResponse) -> dict[str, str]:
    if answer.HasField("immediate_response"):
        options = answer.immediate_response.headers.set_headers
    else:
        options = common(answer).header_mutation.set_headers
    return {option.header.key: option.header.raw_value.decode() for option in options}


def removed(answer: ProcessingResponse) -> set[str]:
    return set(common(answer).header_mutation.remove_headers)


def picked(answer: ProcessingResponse | None) -> str:
    """Return the endpoint of a pick, which header and metadata must name alike."""
    assert answer is not None and not answer.HasField("immediate_response"), answer
    value = set_headers(answer)[DESTINATION]
    told: Any = answer.dynamic_metadata[LB_NAMESPACE]
    assert told[DESTINATION] == value
    assert common(answer).clear_route_cache
    return value


def refused(answer: ProcessingResponse | None) -> tuple[int, dict[str, Any]]:
    assert answer is not None and answer.HasField("immediate_response"), answer
    immediate = answer.immediate_response
    assert set_headers(answer)["content-type"] == "application/json"
    return immediate.status.code, json.loads(immediate.body)["error"]


def echoed(answers: Sequence[ProcessingResponse]) -> bytes:
    """Return the body in full-duplex answers, of which the last one alone ends it."""
    parts = [answer.request_body.response.body_mutation.streamed_response for answer in answers]
    assert [part.end_of_stream for part in parts] == [False] * (len(parts) - 1) + [True]
    assert all(len(part.body) <= 62_000 for part in parts)
    return b"".join(part.body for part in parts)


class PickerRig:
    """A picker process. Its workers are entries of the fleet that are ready because a test says so."""

    def __init__(self, system: GatewayProcess) -> None:
        self.system = system
        self.fleet, self.core = system.fleet, system.core
        assert isinstance(system.gateway, PickerServer)
        self.picker = system.gateway
        self.channel: Any = None

    def ready(self, *workers: str, facts: WorkerFacts = FACTS) -> None:
        for worker in workers:
            self.fleet.probe_succeeded(worker, facts, self.system.now_s())

    def eject(self, worker: str) -> None:
        for _ in range(3):
            self.fleet.probe_failed(worker, "it is gone", self.system.now_s())

    def report(self, worker: str, running: int) -> None:
        report = LoadReport(rank=0, running=running, waiting=0, kv_usage=0.0)
        self.fleet.load_reported(worker, report, self.system.now_s())

    def stream(self) -> GatewayStream:
        return GatewayStream(self.channel)

    async def ask(self, *messages: ProcessingRequest) -> list[ProcessingResponse]:
        return await (await self.stream().send(*messages)).rest()

    async def pick(self, text: str = "hello", **options: Any) -> str:
        return picked((await self.ask(request_headers(**options), body(chat(text))))[0])

    @property
    def load(self) -> dict[str, int]:
        """Requests that each candidate has reserved, without zeros."""
        workers = self.core.statistics()["workers"]
        return {worker: load["running_requests"] for worker, load in workers.items() if load["running_requests"]}

    async def empties(self) -> None:
        """Wait until the ledger, the queues and the limits of bodies are empty."""
        await eventually(lambda: not (self.load or self._kept), LIMIT_S)

    @property
    def _kept(self) -> int:
        now = self.picker.statistics()
        return int(now["streams"] + now["buffered_body_bytes"])


@asynccontextmanager
async def picker_rig(
    workers: Sequence[str | WorkerConfig] = ("10.0.0.1:8000", "10.0.0.2:8000"),
    *,
    ready: bool = True,
    facts: WorkerFacts = FACTS,
    secure: bool = False,
    picker: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[PickerRig]:
    listed = [one if isinstance(one, WorkerConfig) else WorkerConfig(url=f"http://{one}") for one in workers]
    defaults = {
        "host": "127.0.0.1",
        "port": 0,
        "admin_port": 0,
        "policy": {"rule": "least_requests"},
        "residency": {"self_test": False, "kv_events": False},
        "health": {"probe_interval_s": 3600.0},  # tests say what is ready
        "tokenizer": "local",
    }
    built = msgspec.convert({**defaults, **settings, "picker": {"secure": secure, **(picker or {})}}, Config)
    system = GatewayProcess(msgspec.structs.replace(built, workers=tuple(listed)), front=PickerServer)
    system.watcher.watch = lambda *_: None  # type: ignore[method-assign]
    await system.start()
    rig = PickerRig(system)
    try:
        if ready:
            rig.ready(*[endpoint.id for endpoint in rig.fleet.endpoints], facts=facts)
        address = system.ports._addresses[0].partition("://")[2]
        async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            rig.channel = channel
            yield rig
    finally:
        await system.aclose(drain_s=2.0)


def model_facts(*models: str) -> WorkerFacts:
    return WorkerFacts(version=FACTS.version, models=tuple(map(ServedModel, models)), caches=FACTS.caches)
