"""A request and its response as a gateway takes them through a stream, in each body mode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from router.picker.conformance.answers import PickerAnswer, is_streamed
from router.picker.conformance.outcome import CaseSkipped
from router.picker.conformance.requests import (
    BUFFERED,
    FULL_DUPLEX,
    NONE,
    STREAMED,
    GatewayRequest,
    HeaderFields,
    body_messages,
    pieces_of,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
)
from router.picker.conformance.stream import ExtProcStream
from router.picker.protocol.ext_proc_pb2 import ProcessingRequest, ProcessingResponse

Complete = Callable[[list[ProcessingResponse]], bool]


async def ask(
    stream: ExtProcStream, request: GatewayRequest, pieces: Sequence[bytes] | None = None, trailers: bool = False
) -> PickerAnswer:
    """Take a request through the stream until the picker has decided.

    Raises:
        CaseFailed: the stream broke, or an answer did not come in time.
    """
    parts = list(pieces) if pieces is not None else pieces_of(request.body or b"")
    if request.body is None or request.mode == NONE:
        return await exchange(stream, [request_headers(request)], _first)
    if request.mode == FULL_DUPLEX:
        sent = [request_headers(request), *body_messages(parts, ends=not trailers)]
        return await exchange(stream, [*sent, *([request_trailers()] if trailers else [])], _whole_body(trailers))
    if request.mode == STREAMED:
        return await _step_by_step(stream, [request_headers(request), *body_messages(parts)])
    assert request.mode == BUFFERED
    return await _step_by_step(stream, [request_headers(request), *body_messages([request.body])])


def _first(received: list[ProcessingResponse]) -> bool:
    return bool(received)


def _whole_body(trailers: bool) -> Complete:
    def complete(received: list[ProcessingResponse]) -> bool:
        last = received[-1]
        if last.HasField("request_body"):
            body = last.request_body.response
            # Envoy ends the request at an answer that is no streamed_response.
            return not is_streamed(body) or (body.body_mutation.streamed_response.end_of_stream and not trailers)
        return last.HasField("request_trailers") or last.HasField("immediate_response")

    return complete


async def exchange(stream: ExtProcStream, sent: Iterable[ProcessingRequest], complete: Complete) -> PickerAnswer:
    """Send messages without a wait for answers, and read answers until they are complete."""
    sending = asyncio.ensure_future(_send(stream, sent))
    received: list[ProcessingResponse] = []
    try:
        while not received or not complete(received):
            message = await stream.receive()
            if message is None:
                break
            received.append(message)
        await sending
    finally:
        sending.cancel()
        await asyncio.wait([sending])
        if not sending.cancelled():
            sending.exception()
    return PickerAnswer(tuple(received), stream.ended)


async def _send(stream: ExtProcStream, messages: Iterable[ProcessingRequest]) -> None:
    for message in messages:
        await stream.send(message)


async def _step_by_step(stream: ExtProcStream, messages: Iterable[ProcessingRequest]) -> PickerAnswer:
    """Send each message after the answer to the one before."""
    received: list[ProcessingResponse] = []
    for message in messages:
        await stream.send(message)
        answer = await stream.receive()
        if answer is not None:
            received.append(answer)
        if answer is None or answer.HasField("immediate_response"):
            break
    return PickerAnswer(tuple(received), stream.ended)


async def respond_headers(
    stream: ExtProcStream, status: int = 200, headers: HeaderFields = (), served: str | None = None, ends: bool = False
) -> ProcessingResponse:
    """Send the worker's headers, and return the answer.

    Raises:
        CaseSkipped: the picker has ended its stream, so that it sees no response.
    """
    await stream.send(response_headers(status, headers, served, ends))
    return await _next(stream)


async def respond_body(stream: ExtProcStream, pieces: Sequence[bytes], trailers: bool = False) -> PickerAnswer:
    """Send the worker's body in full duplex, and return the answers until its end.

    Raises:
        CaseSkipped: the picker has ended its stream.
    """
    sent = [response_body(piece, not trailers and n == len(pieces)) for n, piece in enumerate(pieces, 1)]

    def complete(received: list[ProcessingResponse]) -> bool:
        last = received[-1]
        return last.HasField("response_trailers") or (
            not trailers and last.response_body.response.body_mutation.streamed_response.end_of_stream
        )

    answer = await exchange(stream, [*sent, *([response_trailers()] if trailers else [])], complete)
    if answer.ended:
        raise CaseSkipped(SEES_NO_RESPONSE)
    return answer


async def _next(stream: ExtProcStream) -> ProcessingResponse:
    answer = await stream.receive()
    if answer is None:
        raise CaseSkipped(SEES_NO_RESPONSE)
    return answer


SEES_NO_RESPONSE = "the picker ends its stream after the pick, which is allowed, and sees no response"
