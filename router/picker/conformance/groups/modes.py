"""C: other body modes, and what newer and older gateways send."""

from __future__ import annotations

from google.protobuf.struct_pb2 import Struct

from router.picker.conformance.answers import PickerAnswer, is_streamed
from router.picker.conformance.bench import Bench
from router.picker.conformance.case import CaseGroup, ConformanceCase
from router.picker.conformance.fixture import CaseProfile
from router.picker.conformance.outcome import Requirement, expect
from router.picker.conformance.requests import (
    BUFFERED,
    NONE,
    STREAMED,
    GatewayRequest,
    body_messages,
    pieces_of,
    request_headers,
)
from router.picker.conformance.stream import ExtProcStream
from router.picker.protocol.ext_proc_pb2 import ProcessingRequest
from router.picker.protocol.names import DESTINATION

_UNKNOWN_FIELD = b"\xc2\x3e\x03abc"
"""Field 1,000 with three bytes."""


def _no_echo(answer: PickerAnswer) -> None:
    answer.picked()
    expect(not any(map(is_streamed, answer.common())), "an answer has streamed_response, which is for full duplex")


async def buffered(bench: Bench) -> None:
    answer = await bench.ask(bench.chat(mode=BUFFERED))
    _no_echo(answer)
    expect(answer.kinds == ["request_headers", "request_body"], f"the answers are {answer.described()}")


async def streamed(bench: Bench) -> None:
    request = bench.chat(mode=STREAMED, filler_bytes=40_000)
    answer = await bench.ask(request)
    _no_echo(answer)
    bodies = len(pieces_of(request.body or b""))
    if not answer.ended:
        expect(answer.kinds == ["request_headers"] + ["request_body"] * bodies, f"the answers are {answer.described()}")


async def without_body(bench: Bench) -> None:
    _no_echo(await bench.ask(bench.chat(mode=NONE)))


async def no_protocol_config(bench: Bench) -> str:
    """What an older gateway expects cannot be seen, so any form of answer passes."""
    request = bench.chat(says_mode=False)
    async with bench.stream() as stream:
        await stream.send(request_headers(request))
        came = await stream.receive_all(bench.patience.silence_s)
        if not stream.ended and not PickerAnswer(tuple(came)).header(DESTINATION):
            await _send_body(stream, request)
            came += filter(None, [await stream.receive()])
            came += await stream.receive_all(bench.patience.silence_s)
        answer = PickerAnswer(tuple(came), stream.ended)
    answer.picked()
    return answer.described()


async def _send_body(stream: ExtProcStream, request: GatewayRequest) -> None:
    for message in body_messages(pieces_of(request.body or b"")):
        await stream.send(message)


async def either_wait(bench: Bench) -> None:
    for at_once in (False, True):
        (await bench.ask(bench.chat(sends_at_once=at_once))).picked()


async def observes(bench: Bench) -> None:
    request = bench.chat()
    first = request_headers(request)
    first.observability_mode = True
    async with bench.stream() as stream:
        await stream.send(first)
        for message in body_messages(pieces_of(request.body or b"")):
            message.observability_mode = True
            await stream.send(message)
        came = await stream.receive_all(bench.patience.silence_s)
    expect(not came, f"nobody reads answers, and there came {PickerAnswer(tuple(came)).described()}")


async def _asked(bench: Bench, first: ProcessingRequest, request: GatewayRequest) -> PickerAnswer:
    """Ask with another first message."""
    async with bench.stream() as stream:
        await stream.send(first)
        await _send_body(stream, request)
        received = []
        while (message := await stream.receive()) is not None:
            received.append(message)
            if message.HasField("request_headers") or message.HasField("immediate_response"):
                break
        return PickerAnswer(tuple(received), stream.ended)


async def unknown_fields(bench: Bench) -> None:
    request = bench.chat()
    first = request_headers(request)
    wire = first.SerializeToString() + _UNKNOWN_FIELD
    (await _asked(bench, ProcessingRequest.FromString(wire), request)).picked()


async def attributes(bench: Bench) -> None:
    request = bench.chat()
    first, struct = request_headers(request), Struct()
    struct.update({"source.address": "192.0.2.1:40000", "request.time": 1.5, "xds.route_name": "a route"})
    first.attributes["envoy.filters.http.ext_proc"].CopyFrom(struct)
    (await _asked(bench, first, request)).picked()


_MUST, _SHOULD = Requirement.MUST, Requirement.SHOULD
_CORE = CaseProfile.CORE

GROUP = CaseGroup(
    "C",
    "Other modes",
    (
        ConformanceCase(
            26, "BUFFERED: the headers are answered at once, and the body is not echoed.", "X", _SHOULD, _CORE, buffered
        ),
        ConformanceCase(27, "STREAMED: each message is answered once, without an echo.", "X", _SHOULD, _CORE, streamed),
        ConformanceCase(28, "NONE: the headers alone get a pick.", "X", _SHOULD, _CORE, without_body),
        ConformanceCase(29, "A stream without `protocol_config` gets a pick.", "X", _SHOULD, _CORE, no_protocol_config),
        ConformanceCase(
            30,
            "`send_body_without_waiting_for_header_response` may be false or true.",
            "dynamo#13686",
            _MUST,
            _CORE,
            either_wait,
        ),
        ConformanceCase(31, "`observability_mode`: nothing is answered.", "X", _SHOULD, _CORE, observes),
        ConformanceCase(32, "Unknown fields are ignored.", "X", _MUST, _CORE, unknown_fields),
        ConformanceCase(33, "`attributes` do no harm.", "X", _MUST, _CORE, attributes),
    ),
)
