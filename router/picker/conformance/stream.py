"""One ext_proc stream, as its client. Every wait is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc

from router.picker.conformance.outcome import CaseFailed
from router.picker.protocol.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from router.picker.protocol.names import PROCESS

ENDED_WHILE_SENT = "the picker ended the stream while a message was sent"
_LOST_STATUS = "Internal error from Core"
"""What gRPC reports in place of the picker's status if a write fails before the status has been read."""


class NoAnswer(CaseFailed):
    """Nothing came in time."""


class ExtProcStream:
    def __init__(self, call: Any, answer_s: float) -> None:
        self._call = call
        self._answer_s = answer_s
        # A read that is cancelled ends the whole call, so one that came to nothing waits on.
        self._reading: asyncio.Task[Any] | None = None
        self.ended = False

    async def send(self, message: ProcessingRequest) -> None:
        """Send a message. After the end of the stream it is dropped.

        Raises:
            CaseFailed: the stream broke.
            NoAnswer: the picker does not read.
        """
        try:
            async with asyncio.timeout(self._answer_s):
                await self._call.write(message)
        except TimeoutError:
            raise NoAnswer(f"the picker read nothing for {self._answer_s:g} s") from None
        except asyncio.InvalidStateError:
            return  # the status is read with the next answer
        except grpc.aio.AioRpcError as error:
            raise _broken(error) from None

    async def receive(self, wait_s: float | None = None) -> ProcessingResponse | None:
        """Return the next answer; None at an end with status OK.

        Raises:
            NoAnswer: nothing came within `wait_s`.
            CaseFailed: the stream ended with another status.
        """
        limit_s = self._answer_s if wait_s is None else wait_s
        reading = self._reading = self._reading or asyncio.ensure_future(self._call.read())
        if not (await asyncio.wait([reading], timeout=limit_s))[0]:
            raise NoAnswer(f"no answer within {limit_s:g} s")
        self._reading = None
        try:
            message: ProcessingResponse | Any = reading.result()
        except grpc.aio.AioRpcError as error:
            raise _broken(error) from None
        except asyncio.CancelledError:
            raise CaseFailed("the stream was cancelled") from None
        if message is not grpc.aio.EOF:
            return message
        await self._ended_well()
        return None

    async def _ended_well(self) -> None:
        self.ended = True
        status = await self._call.code()
        if status is not grpc.StatusCode.OK:
            raise CaseFailed(f"the stream ended with gRPC status {status.name}: {await self._call.details()}")

    async def receive_all(self, for_s: float) -> list[ProcessingResponse]:
        """Return what comes until nothing more comes for `for_s`."""
        messages: list[ProcessingResponse] = []
        with suppress(NoAnswer):
            while (message := await self.receive(for_s)) is not None:
                messages.append(message)
        return messages

    async def half_close(self) -> None:
        """Say that the gateway sends nothing more."""
        with suppress(asyncio.InvalidStateError):
            await self._call.done_writing()

    async def end(self, wait_s: float) -> None:
        """Half-close, and read to the end.

        Raises:
            NoAnswer: there was no end within `wait_s` of an answer.
            CaseFailed: it ended with another status than OK.
        """
        await self.half_close()
        while not self.ended and await self.receive(wait_s) is not None:
            pass

    def cancel(self) -> None:
        self._call.cancel()

    async def aclose(self) -> None:
        self._call.cancel()
        if self._reading is not None:
            await asyncio.wait([self._reading])
            if not self._reading.cancelled():
                self._reading.exception()


@asynccontextmanager
async def open_stream(channel: Any, answer_s: float) -> AsyncIterator[ExtProcStream]:
    method = channel.stream_stream(
        PROCESS,
        request_serializer=ProcessingRequest.SerializeToString,
        response_deserializer=ProcessingResponse.FromString,
    )
    stream = ExtProcStream(method(), answer_s)
    try:
        yield stream
    finally:
        await stream.aclose()


def _broken(error: grpc.aio.AioRpcError) -> CaseFailed:
    if error.details() == _LOST_STATUS:
        return CaseFailed(ENDED_WHILE_SENT)
    return CaseFailed(f"the stream ended with gRPC status {error.code().name}: {error.details()}")
