"""The service grpc.health.v1.Health, under the names that gateways, charts and the protocol probe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc

from router.picker.protocol.health_pb2 import HealthCheckRequest, HealthCheckResponse
from router.picker.protocol.names import (
    EXTERNAL_PROCESSOR,
    HEALTH_CHECK,
    HEALTH_WATCH,
    INFERENCE_EXTENSION,
    LIVENESS,
    READINESS,
)

_LOOK_S: Final = 0.25
"""How often a watch looks whether its status has changed."""
_READY: Final = ("", READINESS, EXTERNAL_PROCESSOR, INFERENCE_EXTENSION)


class HealthService:
    """`ready` says whether requests can be picked for. Liveness is SERVING for as long as anybody answers."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        read, write = HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
        return {
            HEALTH_CHECK: grpc.unary_unary_rpc_method_handler(self.check, read, write),
            HEALTH_WATCH: grpc.unary_stream_rpc_method_handler(self.watch, read, write),
        }

    def status(self, service: str) -> HealthCheckResponse.ServingStatus:
        if service == LIVENESS:
            return HealthCheckResponse.SERVING
        if service not in _READY:
            return HealthCheckResponse.SERVICE_UNKNOWN
        return HealthCheckResponse.SERVING if self._ready() else HealthCheckResponse.NOT_SERVING

    async def check(self, request: HealthCheckRequest, context: Any) -> HealthCheckResponse:
        """Return the status; as the protocol asks, an unknown name ends with NOT_FOUND."""
        status = self.status(request.service)
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no such service: {request.service[:100]}")
        return HealthCheckResponse(status=status)

    async def watch(self, request: HealthCheckRequest, context: Any) -> AsyncIterator[HealthCheckResponse]:
        """Yield the status now and after each change. An unknown name stays SERVICE_UNKNOWN."""
        last = None
        while True:
            status = self.status(request.service)
            if status != last:
                last = status
                yield HealthCheckResponse(status=status)
            await asyncio.sleep(_LOOK_S)
