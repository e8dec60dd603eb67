"""A picker that passes every case, or misbehaves as its `Manners` say."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from router.picker.protocol.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from router.picker.protocol.health_pb2 import HealthCheckRequest, HealthCheckResponse
from router.picker.protocol.names import EXTERNAL_PROCESSOR, INFERENCE_EXTENSION, LIVENESS, READINESS
from tests.router.picker.conformance.manners import Manners
from tests.router.picker.conformance.scripted_pool import ScriptedPool
from tests.router.picker.conformance.scripted_stream import Aborted, ScriptedStream

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING


class ScriptedPicker:
    def __init__(self, manners: Manners) -> None:
        self.manners = manners
        self.pool = ScriptedPool(manners)
        self._open = 0
        self._undecided = 0
        self._alone = asyncio.Lock()

    async def process(self, messages: Any, context: Any) -> AsyncIterator[ProcessingResponse]:
        if self.pool.draining or self._undecided >= self.manners.most_undecided:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "draining")
        if self._open >= self.manners.most_streams:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams")
        self._open += 1
        self._undecided += 1
        stream = ScriptedStream(self.pool)
        try:
            async for message in messages:
                async for answer in self._in_turn(stream, message):
                    yield answer
                self._undecided -= stream.decided and not stream.counted
                stream.counted = stream.decided
        except Aborted as error:
            await context.abort(error.code, str(error))
        finally:
            self._open -= 1
            if stream.responded or not self.manners.leaks_cancelled:
                stream.release()

    async def _in_turn(self, stream: ScriptedStream, message: ProcessingRequest) -> AsyncIterator[ProcessingResponse]:
        if not self.manners.one_at_a_time:
            async for answer in stream.answers(message):
                yield answer
            return
        async with self._alone:
            async for answer in stream.answers(message):
                yield answer

    def status_of(self, service: str) -> int | None:
        """Return a serving status; None for a name that is not known."""
        manners, synced = self.manners, self.pool.synced.is_set()
        if service == LIVENESS:
            return SERVING if synced or not manners.liveness_needs_sync else NOT_SERVING
        known = {
            READINESS: True,
            EXTERNAL_PROCESSOR: manners.serves_processor_name,
            INFERENCE_EXTENSION: manners.serves_manifest_names,
            "": manners.serves_manifest_names,
        }
        if not known.get(service, manners.serves_unknown_names):
            return None
        ready = (synced or not manners.readiness_needs_sync) and not self.pool.draining
        return SERVING if ready else NOT_SERVING

    async def check(self, request: HealthCheckRequest, context: Any) -> HealthCheckResponse:
        status = self.status_of(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return HealthCheckResponse(status=status)

    async def watch(self, request: HealthCheckRequest, context: Any) -> AsyncIterator[HealthCheckResponse]:
        last = self.status_of(request.service)
        yield HealthCheckResponse(status=last)
        while self.manners.watches:
            async with self.pool.changed:
                while self.status_of(request.service) == last:
                    await self.pool.changed.wait()
            last = self.status_of(request.service)
            yield HealthCheckResponse(status=last)


@asynccontextmanager
async def serve(picker: ScriptedPicker) -> AsyncIterator[str]:
    """Yield the address on which the picker listens."""
    most = picker.manners.most_message_bytes
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", most), ("grpc.so_reuseport", 0)])
    process = grpc.stream_stream_rpc_method_handler(
        picker.process, ProcessingRequest.FromString, ProcessingResponse.SerializeToString
    )
    read, write = HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
    health = {
        "Check": grpc.unary_unary_rpc_method_handler(picker.check, read, write),
        "Watch": grpc.unary_stream_rpc_method_handler(picker.watch, read, write),
    }
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(EXTERNAL_PROCESSOR, {"Process": process}),
            grpc.method_handlers_generic_handler("grpc.health.v1.Health", health),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def tls_front(address: str, context: ssl.SSLContext) -> AsyncIterator[str]:
    """Yield an address that adds TLS."""
    host, port = address.split(":")
    tasks = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while part := await reader.read(65_536):
                writer.write(part)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        for one in (copy(reader, there_writer), copy(there_reader, writer)):
            task = asyncio.ensure_future(one)
            tasks.add(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
