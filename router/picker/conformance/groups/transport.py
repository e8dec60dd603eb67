"""H: streams, connections and headers."""

from __future__ import annotations

import asyncio
from typing import Any

from router.picker.conformance.bench import Bench
from router.picker.conformance.case import CaseGroup, ConformanceCase
from router.picker.conformance.channel import SMALL_WINDOW, open_channel
from router.picker.conformance.fixture import CaseProfile
from router.picker.conformance.hook import ALL, HookAction
from router.picker.conformance.outcome import CaseFailed, CaseSkipped, Requirement, expect
from router.picker.conformance.phases import ask, respond_headers
from router.picker.conformance.requests import (
    BUFFERED,
    FULL_DUPLEX,
    GatewayRequest,
    body_messages,
    chat_of,
    header_map,
    pieces_of,
    request_headers,
    response_body,
    response_headers,
)
from router.picker.conformance.stream import ExtProcStream, NoAnswer
from router.picker.protocol.ext_proc_pb2 import ProcessingRequest
from router.picker.protocol.names import DESTINATION, READINESS

_STREAMS_PER_CONNECTION = 100
_PICKS_AT_ONCE = 8
_LARGE_BYTES = 5 * 2**20
_BINARY = b"caf\xe9 \xff\xfe"


async def many_streams(bench: Bench) -> str:
    count = bench.effort.streams
    async with bench.further_channels(-(-count // _STREAMS_PER_CONNECTION)) as channels:
        at_once, everyone = asyncio.Semaphore(_PICKS_AT_ONCE * len(channels)), asyncio.Event()
        picked = 0

        async def one(channel: Any) -> None:
            nonlocal picked
            async with bench.stream(channel) as stream:
                async with at_once:
                    (await ask(stream, bench.chat())).picked()
                picked += 1
                if picked == count:
                    everyone.set()
                await everyone.wait()

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(one(channels[number % len(channels)]))
    return f"{count:,} streams over {len(channels)} connections"


async def cancelled(bench: Bench) -> str:
    for step in range(5):
        async with bench.stream() as stream:
            await _until(stream, bench.chat(filler_bytes=50_000, response_mode=FULL_DUPLEX), step)
            stream.cancel()
    await bench.answers_again()
    if not await bench.prints(HookAction.LEDGER):
        return "the hook offers no ledger, so the picker's ledger was not seen"
    left = await bench.counts_to(HookAction.LEDGER, ALL, 0)
    expect(left == 0, f"the ledger has {left:g} requests left")
    return "the ledger is empty"


async def _until(stream: ExtProcStream, request: GatewayRequest, step: int) -> None:
    """Go as far as headers, some of the body, all of it, the pick, or some of the response."""
    pieces = list(body_messages(pieces_of(request.body or b"")))
    if step < 3:
        for message in (request_headers(request), *pieces[: (0, 1, len(pieces))[step]]):
            await stream.send(message)
        return
    await ask(stream, request)
    if step == 4 and not stream.ended:
        await stream.send(response_headers(200))
        await stream.send(response_body(b"data: {}\n\n", ends=False))


async def large_message(bench: Bench) -> None:
    (await bench.ask(bench.chat(body=chat_of(bench.fixture.model, _LARGE_BYTES), mode=BUFFERED))).picked()


async def slow_reader(bench: Bench) -> None:
    """Leave the echo of a large body unread, and ask on the same connection."""
    slow = bench.chat(body=chat_of(bench.fixture.model, 1_000_000))
    async with open_channel(bench.target.address, SMALL_WINDOW) as channel, bench.stream(channel) as stream:
        try:
            for message in (request_headers(slow), *body_messages(pieces_of(slow.body or b""))):
                await stream.send(message)
        except NoAnswer:
            pass  # a picker that answers early reads no further while its answers are not read
        await asyncio.sleep(bench.patience.silence_s)
        for _ in range(5):
            try:
                (await bench.ask(bench.chat(), channel=channel)).picked()
            except NoAnswer:
                raise CaseFailed("while one stream is not read, others on its connection get no answer") from None


async def drained(bench: Bench) -> str:
    async with bench.stream() as stream:
        (await ask(stream, bench.chat())).picked()
        await bench.act(HookAction.DRAIN)
        said = await _not_serving(bench)
        if not stream.ended:
            try:
                await respond_headers(stream, ends=True)
            except CaseSkipped:
                pass  # ended with OK
            await stream.end(bench.patience.answer_s)
    expect(await bench.until(lambda: _refuses(bench), bench.patience.arrive_s), "new streams are still accepted")
    return said


async def _not_serving(bench: Bench) -> str:
    try:
        said = ""

        async def ended() -> bool:
            nonlocal said
            said = await bench.health.check(READINESS)
            return said != "SERVING"

        expect(await bench.until(ended, bench.patience.arrive_s), f"{READINESS} is still {said}")
    except CaseSkipped:
        return "the health service is on no known port, and was not asked"
    return f"{READINESS}: {said}"


async def _refuses(bench: Bench) -> bool:
    async with bench.further_channels(1) as channels:
        try:
            async with bench.stream(channels[0]) as stream:
                answer = await ask(stream, bench.get())
        except CaseFailed:
            return True
    return answer.refusal is not None


async def http2_in_tls(bench: Bench) -> str:
    if bench.target.alpn is None:
        raise CaseSkipped("the picker is reached without TLS")
    chosen = bench.target.alpn or "nothing"
    expect(chosen == "h2", f"ALPN chose {chosen}")
    return "h2"


async def many_resets(bench: Bench) -> str:
    for _ in range(bench.effort.resets):
        async with bench.stream() as stream:
            await stream.send(request_headers(bench.chat()))
            stream.cancel()
    await bench.answers_again()
    return f"{bench.effort.resets:,} streams"


async def raw_and_text(bench: Bench) -> None:
    for change in (_raw_alone, _text_alone, _both):
        request = bench.get()
        first = request_headers(request)
        change(first)
        async with bench.stream() as stream:
            await stream.send(first)
            message = await stream.receive()
        expect(message is not None and message.HasField("request_headers"), f"no pick with {change.__doc__}")
        assert message is not None
        options = message.request_headers.response.header_mutation.set_headers
        own = [one.header for one in options if one.header.key == DESTINATION]
        expect(own, f"no pick with {change.__doc__}")
        expect(
            all(one.raw_value and not one.value for one in own), "the destination is not in raw_value: Envoy ignores it"
        )


def _raw_alone(message: ProcessingRequest) -> None:
    """bytes in raw_value that are no UTF-8"""
    message.request_headers.headers.headers.extend(header_map([("x-name", _BINARY)]).headers)


def _text_alone(message: ProcessingRequest) -> None:
    """headers in value"""
    for header in message.request_headers.headers.headers:
        header.value, header.raw_value = header.raw_value.decode(), b""


def _both(message: ProcessingRequest) -> None:
    """headers in value and in raw_value"""
    for header in message.request_headers.headers.headers:
        header.value = header.raw_value.decode()


async def odd_keys(bench: Bench) -> None:
    headers = [("X-Tenant", "a"), ("x-tenant", "b"), ("X-TENANT", "c"), ("Content-Type", "application/json")]
    (await bench.ask(bench.chat(headers=headers))).picked()


_MUST, _SHOULD = Requirement.MUST, Requirement.SHOULD
_CORE = CaseProfile.CORE

GROUP = CaseGroup(
    "H",
    "Streams and transport",
    (
        ConformanceCase(72, "1,000 streams may be open at once.", "X", _MUST, _CORE, many_streams),
        ConformanceCase(
            73, "A stream may be cancelled in each phase; nothing is left of it.", "X", _MUST, _CORE, cancelled
        ),
        ConformanceCase(74, "A message may have 5 MiB.", "X", _SHOULD, _CORE, large_message),
        ConformanceCase(
            75, "A stream that is not read does not stop others.", "X", _SHOULD, CaseProfile.STREAMING, slow_reader
        ),
        ConformanceCase(
            76,
            "Before it ends, the picker is NOT_SERVING, open streams end with OK, and new ones are refused.",
            "H, P",
            _SHOULD,
            _CORE,
            drained,
            actions=(HookAction.DRAIN,),
            last=True,
        ),
        ConformanceCase(
            77, "TLS chooses `h2`, also with a certificate of the picker's own.", "P", _MUST, _CORE, http2_in_tls
        ),
        ConformanceCase(78, "1,000 resets of new streams do no harm.", "CVE-2023-44487", _SHOULD, _CORE, many_resets),
        ConformanceCase(
            79,
            "Headers are read from `raw_value` and from `value`, and set in `raw_value`.",
            "X",
            _MUST,
            _CORE,
            raw_and_text,
        ),
        ConformanceCase(80, "Header keys may have capitals, and come twice.", "X", _SHOULD, _CORE, odd_keys),
    ),
)
