"""grpc.health.v1, as its client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from router.picker.conformance.outcome import CaseFailed, CaseSkipped
from router.picker.protocol.health_pb2 import HealthCheckRequest, HealthCheckResponse
from router.picker.protocol.names import HEALTH_CHECK, HEALTH_WATCH


class HealthClient:
    def __init__(self, channel: Any, answer_s: float, own_port: bool) -> None:
        self._channel = channel
        self._answer_s = answer_s
        self._own_port = own_port

    async def check(self, service: str) -> str:
        """Return the name of a serving status, or of the gRPC status of a refusal.

        Raises:
            CaseSkipped: the port has no health service, and may have none.
            CaseFailed: no answer.
        """
        method = self._channel.unary_unary(
            HEALTH_CHECK,
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        try:
            answer = await method(HealthCheckRequest(service=service), timeout=self._answer_s)
        except grpc.aio.AioRpcError as error:
            return self._refused(error)
        return _name(answer)

    def _refused(self, error: grpc.aio.AioRpcError) -> str:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED and not self._own_port:
            raise CaseSkipped("the picker's port has no health service; name its port with --health")
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise CaseFailed(f"no answer within {self._answer_s:g} s")
        return str(error.code().name)

    @asynccontextmanager
    async def watch(self, service: str) -> AsyncIterator[HealthWatch]:
        method = self._channel.unary_stream(
            HEALTH_WATCH,
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        call = method(HealthCheckRequest(service=service))
        try:
            yield HealthWatch(call)
        finally:
            call.cancel()


class HealthWatch:
    def __init__(self, call: Any) -> None:
        self._call = call

    async def next(self, wait_s: float) -> str:
        """Return the next status.

        Raises:
            CaseFailed: none came in time, or the watch ended.
        """
        try:
            async with asyncio.timeout(wait_s):
                answer = await self._call.read()
        except TimeoutError:
            raise CaseFailed(f"Watch reported nothing for {wait_s:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise CaseFailed(f"Watch ended with gRPC status {error.code().name}") from None
        if answer is grpc.aio.EOF:
            raise CaseFailed("Watch ended")
        return _name(answer)


def _name(answer: HealthCheckResponse) -> str:
    return HealthCheckResponse.ServingStatus.Name(answer.status)
