"""The endpoint picker as a front: a gRPC server beside the same workers, placement and admin port as the gateway's."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final

import grpc
import msgspec
from google.protobuf.message import DecodeError

from router.config.model import LimitsConfig, ModelConfig, RouteConfig, TenantConfig
from router.limits.table import RateTable
from router.metrics.instruments import Reading
from router.picker.credentials import credentials_of
from router.picker.health import HealthService
from router.picker.parts import PickerParts
from router.picker.pools.worker_pool import WorkerPool
from router.picker.protocol.names import PROCESS
from router.picker.stream import GatewayLeft, PickStream
from router.placement.fleet.query_of_death import Deaths
from router.requests.front import FrontContext, ListenError
from router.requests.pins import SharedPins
from router.requests.preview import PreviewedRequest
from router.requests.readings import front_readings, limit_readings
from router.security.reload import FileWatch

log = logging.getLogger("warmroute.picker")

_MESSAGE_BYTES: Final = 1_048_576
"""Bytes of a message beside its body: headers and attributes."""
_LAST_WORDS_S: Final = 1.0
_PINGS_S: Final = 5.0
"""Shortest time between two keep-alive pings of a gateway without data. gRPC's own default of 300 s would close the
connections of gateways with the usual settings."""
_NO_SOCKETS: Final = "gRPC takes no listening sockets of a service manager; let the picker bind its own port"


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, by_method: Mapping[str, grpc.RpcMethodHandler]) -> None:
        self._by_method = by_method

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return self._by_method.get(details.method)


class GrpcWire:
    """Satisfies `router.picker.stream.Wire`."""

    __slots__ = ("_context",)

    def __init__(self, context: Any) -> None:
        self._context = context

    async def read(self) -> bytes | None:
        message = await self._context.read()
        return message if isinstance(message, bytes) else None

    async def write(self, message: bytes) -> None:
        try:
            await self._context.write(message)
        except Exception as error:  # what gRPC raises for a stream that has ended has no public name
            raise GatewayLeft from error


class PickerServer:
    """Satisfies `router.process.front.ListeningFront`. All workers are one pool, or `picker.pools` divides them."""

    def __init__(self, context: FrontContext) -> None:
        self._context = context
        self._files = FileWatch(context.metrics.reloads)
        self._parts: PickerParts | None = None
        self._picking: list[grpc.aio.Server] = []
        """The servers of the ports at which workers are picked."""
        self._health: grpc.aio.Server | None = None
        """The server of the port for health alone."""
        self._streams: set[PickStream] = set()
        self._emptied = asyncio.Event()
        self._draining = False
        self._following: list[asyncio.Task[None]] = []
        self._stopping: asyncio.Future[Any] | None = None

    async def start(
        self,
        listeners: Sequence[socket.socket] | None = None,
        *,
        accept_order: object | None = None,
        pins: SharedPins | None = None,
        deaths: Deaths | None = None,
        limits: RateTable | None = None,
    ) -> list[str]:
        """Listen on the configured port, or on that of each pool. Return the addresses, with the scheme ``grpc://`` or,
        with TLS, ``grpcs://``.

        Raises:
            ListenError: an address is not available.
        """
        if listeners is not None:
            raise ListenError(_NO_SOCKETS)
        config = self._context.config
        parts = self._parts = PickerParts(self._context, asyncio.get_running_loop())
        if limits is not None:
            parts.callers.share_limits(limits)
        self._files.add("api_keys", parts.keys)
        self._files.start()
        self._following = [asyncio.create_task(one) for one in self._objects_of_pools(parts)]
        pools = config.picker.pools
        ports = [
            await self._pick_at(one.port, f"picker.pools.{name}.port", WorkerPool(name, one.workers, parts.fleet))
            for name, one in pools.items()
        ] or [await self._pick_at(config.port, "--grpc-port", None)]
        if config.picker.health_port is not None:
            handlers = HealthService(lambda: self._ready(None)).handlers()
            self._health, _ = await self._listen(
                config.picker.health_port, "--grpc-health-port", handlers, secure=False
            )
        return [f"{'grpcs' if config.picker.secure else 'grpc'}://{self._address(port)}" for port in ports]

    def _objects_of_pools(self, parts: PickerParts) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield what follows the objectives and rewrites of each InferencePool that is a source of workers."""
        for source in self._context.config.discovery.sources.values():
            if source.kubernetes is not None and source.kubernetes.pool is not None:
                from router.picker.pools.kubernetes import follow_objects  # late: most pickers ask no API server

                yield follow_objects(source.kubernetes, parts.objects.adopt)

    async def _pick_at(self, port: int, flag: str, pool: WorkerPool | None) -> int:
        """Answer at `port` for the workers of `pool`, or for all. Return the port."""

        async def process(_: object, context: Any) -> None:
            await self._process(context, pool)

        health = HealthService(lambda: self._ready(pool))
        handlers = {PROCESS: grpc.stream_stream_rpc_method_handler(process), **health.handlers()}
        server, bound = await self._listen(port, flag, handlers, secure=self._context.config.picker.secure)
        self._picking.append(server)
        return bound

    async def _listen(
        self, port: int, flag: str, by_method: Mapping[str, grpc.RpcMethodHandler], *, secure: bool
    ) -> tuple[grpc.aio.Server, int]:
        config = self._context.config
        body_bytes = config.limits.max_body_bytes
        server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", body_bytes + _MESSAGE_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", config.picker.max_streams),
                ("grpc.max_metadata_size", config.limits.max_header_bytes),
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", int(_PINGS_S * 1e3)),
                ("grpc.keepalive_permit_without_calls", 1),
            ),
            maximum_concurrent_rpcs=config.picker.max_streams,
        )
        server.add_generic_rpc_handlers((Handlers(by_method),))
        address = self._address(port)
        try:
            bound: int = (
                server.add_secure_port(address, credentials_of(config.tls))
                if secure
                else server.add_insecure_port(address)
            )
        except RuntimeError as error:
            raise ListenError(f"{address} ({flag}, host): {error}") from None
        await server.start()
        return server, bound

    def _address(self, port: int) -> str:
        host = self._context.config.host
        return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"

    def _ready(self, pool: WorkerPool | None) -> bool:
        return not self._draining and (self._context.fleet if pool is None else pool).serving > 0

    async def _process(self, context: Any, pool: WorkerPool | None) -> None:
        assert self._parts is not None, "it was started"
        stream = PickStream(self._parts, GrpcWire(context), pool)
        self._streams.add(stream)
        try:
            await stream.serve()
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a ProcessingRequest")
        finally:
            self._streams.discard(stream)
            if not self._streams:
                self._emptied.set()

    # changes of settings

    def use_routes(self, routes: Sequence[RouteConfig]) -> None:
        self._configure(lambda parts: parts.use_routes(routes), routes=tuple(routes))

    def use_models(self, models: Mapping[str, ModelConfig]) -> None:
        self._configure(lambda parts: parts.use_models(models), models=dict(models))

    def use_callers(self, tenants: Mapping[str, TenantConfig], limits: LimitsConfig) -> None:
        self._configure(lambda parts: parts.use_callers(tenants, limits), tenants=dict(tenants), limits=limits)

    def _configure(self, change: Callable[[PickerParts], None], **changed: Any) -> None:
        """Change the parts, or the settings with which `start` makes them."""
        config = msgspec.structs.replace(self._context.config, **changed)
        self._context = dataclasses.replace(self._context, config=config)
        if self._parts is not None:
            change(self._parts)

    def learn_worker_key(self, endpoint_id: str, key: str | None) -> None:
        if self._parts is not None and self._parts.worker_keys is not None:
            self._parts.worker_keys.learn(endpoint_id, key)

    # the end

    @property
    def listeners(self) -> tuple[socket.socket, ...]:
        """gRPC gives its sockets to nobody."""
        return ()

    def drain(self) -> None:
        self._draining = True

    def end_drain(self) -> None:
        self._draining = False

    async def stop_accepting(self, *, leave_queue: bool | None = None) -> None:
        """Refuse new streams. Those that only wait for an answer end with OK; picks in progress go on."""
        self._draining = True
        if self._stopping is None and self._picking:
            longest_s = self._context.config.timeouts.total_s
            self._stopping = asyncio.gather(*[server.stop(longest_s) for server in self._picking])
            for stream in list(self._streams):
                stream.drain()

    async def accept_again(self, listeners: Sequence[socket.socket]) -> None:
        raise ListenError(_NO_SOCKETS)

    async def drained(self) -> None:
        while self._streams:
            self._emptied.clear()
            await self._emptied.wait()

    async def aclose(self, drain_s: float, *, leave_queue: bool | None = None) -> None:
        await self.stop_accepting()
        try:
            await asyncio.wait_for(self.drained(), drain_s)
        except TimeoutError:
            log.warning("streams cut off at the drain deadline", extra={"streams": len(self._streams)})
        for server in (*self._picking, self._health):
            if server is not None:
                await server.stop(_LAST_WORDS_S)
        if self._stopping is not None:
            await self._stopping
        self._files.close()
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        if self._parts is not None:
            self._parts.close()

    # what it knows

    async def preview(
        self, path: str, headers: Mapping[str, str], body: bytes, key_name: str | None = None
    ) -> PreviewedRequest:
        assert self._parts is not None, "the picker has not been started"
        return await self._parts.preview.request(path, headers, body, key_name)

    def limits(self) -> list[dict[str, Any]]:
        return self._parts.limits() if self._parts is not None else []

    def attainment(self, now_s: float) -> dict[str, float | None]:
        """Return nothing: the picker judges no service levels."""
        return {}

    def in_flight(self) -> dict[str, int]:
        running = self._parts.running if self._parts is not None else ()
        return dict(Counter(pick.ticket.candidate.endpoint.id for pick in running if pick.ticket is not None))

    def statistics(self) -> dict[str, Any]:
        parts = self._parts
        if parts is None:
            return {}
        return {**parts.statistics(), "exchanges": len(self._streams), "tasks": len(asyncio.all_tasks(parts.loop))}

    def readings(self) -> Iterator[Reading]:
        yield from front_readings(self.statistics())
        yield from limit_readings(self.limits())
        yield "warmroute_picker_streams", (), len(self._streams)
        if self._parts is not None:
            yield from self._parts.features.readings()
