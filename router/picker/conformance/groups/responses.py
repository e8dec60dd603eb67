"""G: the worker's response, as far as the picker stays to see it."""

from __future__ import annotations

import gzip
import json

from router.picker.conformance.answers import expect_body, text_of
from router.picker.conformance.bench import Bench
from router.picker.conformance.case import CaseGroup, ConformanceCase
from router.picker.conformance.fixture import CaseProfile
from router.picker.conformance.hook import HookAction
from router.picker.conformance.outcome import CaseFailed, CaseSkipped, Requirement, expect
from router.picker.conformance.phases import ask, respond_body, respond_headers
from router.picker.conformance.requests import FULL_DUPLEX, pieces_of, response_body, response_headers
from router.picker.conformance.stream import ExtProcStream, NoAnswer

_SSE = [("content-type", "text/event-stream")]
_USED_TOKENS = 7


def _events(bench: Bench, count: int) -> list[bytes]:
    chunks: list[dict[str, object]] = [
        {"choices": [{"index": 0, "delta": {"content": f"word {n} "}}]} for n in range(count)
    ]
    usage = {"prompt_tokens": 12, "completion_tokens": _USED_TOKENS, "total_tokens": 12 + _USED_TOKENS}
    last: dict[str, object] = {"choices": [], "usage": usage}
    shared = {"id": "c-1", "object": "chat.completion.chunk", "model": bench.fixture.model}
    events = [f"data: {json.dumps({**shared, **one})}\n\n".encode() for one in (*chunks, last)]
    return [*events, b"data: [DONE]\n\n"]


async def headers_answered(bench: Bench) -> None:
    async with bench.stream() as stream:
        (await ask(stream, bench.chat())).picked()
        answer = await respond_headers(stream, ends=False)
    _expect_kind(str(answer.WhichOneof("response")), "response_headers")
    option = answer.response_headers.response.header_mutation.set_headers
    expect(all(text_of(one) == "200" for one in option if one.header.key == ":status"), "the status is changed")


def _expect_kind(kind: str, expected: str) -> None:
    expect(kind == expected, f"{expected} was answered with {kind}")


async def served(bench: Bench) -> str:
    async with bench.stream() as stream:
        pick = (await ask(stream, bench.chat())).endpoints()[0]
        _expect_kind(str((await respond_headers(stream, served=pick)).WhichOneof("response")), "response_headers")
    if not await bench.prints(HookAction.LEDGER):
        return "the hook offers no ledger, so it was not seen to move"
    other = next(endpoint for endpoint in bench.endpoints if endpoint != pick)
    async with bench.stream() as stream:
        pick = (await ask(stream, bench.chat(subset=[pick]))).endpoints()[0]
        _expect_kind(str((await respond_headers(stream, served=other)).WhichOneof("response")), "response_headers")
        counts = [await bench.counts_to(HookAction.LEDGER, *one) for one in ((other, 1), (pick, 0))]
        expect(
            counts == [1, 0], f"{pick} was picked and {other} served; the ledger has {counts[1]:g} and {counts[0]:g}"
        )
    return "the ledger moved"


async def body_echoed(bench: Bench) -> None:
    """A whole event goes on before the next one comes; then events come in pieces."""
    first, *events = _events(bench, 40)
    async with bench.stream() as stream:
        await _response_begun(bench, stream)
        await stream.send(response_body(first, ends=False))
        early = await _echo(stream, len(first))
        expect_body(early, first)
        rest = b"".join(events)
        expect_body((await respond_body(stream, pieces_of(rest, 33))).body("response_body"), rest)


async def _response_begun(bench: Bench, stream: ExtProcStream, headers: list[tuple[str, str]] = _SSE) -> str:
    request = bench.chat(response_mode=FULL_DUPLEX)
    pick = (await ask(stream, request)).endpoints()[0]
    await respond_headers(stream, headers=headers)
    return pick


async def _echo(stream: ExtProcStream, size_bytes: int) -> bytes:
    """Return the first `size_bytes` of the response that come back."""
    received = b""
    while len(received) < size_bytes:
        try:
            answer = await stream.receive()
        except NoAnswer as error:
            raise CaseFailed(f"an event is held back until the next one comes: {error}") from None
        if answer is None:
            raise CaseSkipped("the picker ends its stream before the body, which is allowed")
        received += answer.response_body.response.body_mutation.streamed_response.body
    return received


async def trailers_answered(bench: Bench) -> None:
    body = b"".join(_events(bench, 3))
    async with bench.stream() as stream:
        await _response_begun(bench, stream)
        answer = await respond_body(stream, [body], trailers=True)
    expect_body(answer.body("response_body"), body)
    _expect_kind(answer.kinds[-1], "response_trailers")


async def error_counted(bench: Bench) -> None:
    async with bench.stream() as stream:
        pick = (await ask(stream, bench.chat())).endpoints()[0]
        before = await bench.count(HookAction.ERRORS, pick)
        await respond_headers(stream, status=500, ends=True)
        await stream.half_close()
        after = await bench.counts_to(HookAction.ERRORS, pick, before + 1)
    expect(after == before + 1, f"{before:g} errors before a 500, {after:g} after it")


async def compressed(bench: Bench) -> None:
    body = gzip.compress(json.dumps({"choices": [], "model": bench.fixture.model}).encode() * 200, mtime=0)
    headers = [("content-type", "application/json"), ("content-encoding", "gzip")]
    async with bench.stream() as stream:
        await _response_begun(bench, stream, headers)
        answer = await respond_body(stream, pieces_of(body, 100))
    expect_body(answer.body("response_body"), body)


async def clean_end(bench: Bench) -> str:
    async with bench.stream() as stream:
        (await ask(stream, bench.chat())).picked()
        if not stream.ended:
            await stream.send(response_headers(200, ends=True))
            await stream.receive_all(bench.patience.silence_s)
        if stream.ended:
            return "the picker ends its stream after the pick"
        await stream.end(bench.patience.answer_s)
    return "the picker stays until the response ends"


async def response_alone(bench: Bench) -> str:
    async with bench.stream() as stream:
        await stream.send(response_headers(404, ends=True))
        try:
            await stream.receive_all(bench.patience.silence_s)
            said = "accepted"
        except CaseFailed as error:
            said = str(error)
    await bench.answers_again()
    return said


async def usage(bench: Bench) -> None:
    events = _events(bench, 5)
    async with bench.stream() as stream:
        pick = await _response_begun(bench, stream)
        before = await bench.count(HookAction.USAGE, pick)
        await respond_body(stream, pieces_of(b"".join(events), 50))
        await stream.half_close()
        after = await bench.counts_to(HookAction.USAGE, pick, before + _USED_TOKENS)
    expect(after == before + _USED_TOKENS, f"{after - before:g} tokens were counted of {_USED_TOKENS}")


_MUST, _SHOULD, _MAY = Requirement.MUST, Requirement.SHOULD, Requirement.MAY
_CORE, _STREAMING = CaseProfile.CORE, CaseProfile.STREAMING

GROUP = CaseGroup(
    "G",
    "Responses",
    (
        ConformanceCase(
            63, "Response headers are answered, and the status stays.", "X", _MUST, _CORE, headers_answered
        ),
        ConformanceCase(
            64,
            "The endpoint that served is accepted, and the ledger follows it.",
            "P",
            _SHOULD,
            _CORE,
            served,
            endpoints=2,
        ),
        ConformanceCase(
            65,
            "A streamed response comes back byte for byte, and each event at once.",
            "X",
            _MUST,
            _STREAMING,
            body_echoed,
        ),
        ConformanceCase(66, "Response trailers are answered.", "X", _MUST, _STREAMING, trailers_answered),
        ConformanceCase(
            67,
            "A 500 of the worker's counts as an error.",
            "L",
            _SHOULD,
            _CORE,
            error_counted,
            actions=(HookAction.ERRORS,),
        ),
        ConformanceCase(68, "A compressed response comes back unchanged.", "X", _MUST, _STREAMING, compressed),
        ConformanceCase(69, "The stream ends with status OK, early or late.", "X", _MUST, _CORE, clean_end),
        ConformanceCase(70, "A response without a request before it does no harm.", "X", _MUST, _CORE, response_alone),
        ConformanceCase(
            71, "Usage is read from the stream.", "L", _MAY, _STREAMING, usage, actions=(HookAction.USAGE,)
        ),
    ),
)
