"""B: the order of answers and the bytes of bodies in full duplex."""

from __future__ import annotations

from collections.abc import Sequence

from router.picker.conformance.answers import PickerAnswer, expect_body, is_streamed, set_in
from router.picker.conformance.bench import Bench
from router.picker.conformance.case import CaseGroup, ConformanceCase
from router.picker.conformance.fixture import CaseProfile
from router.picker.conformance.outcome import CaseFailed, Requirement, expect
from router.picker.conformance.phases import ask
from router.picker.conformance.requests import body_messages, chat_of, pieces_of, request_headers
from router.picker.conformance.stream import NoAnswer
from router.picker.protocol.ext_proc_pb2 import HttpBody, ProcessingRequest
from router.picker.protocol.names import DESTINATION, MOST_CHUNK_BYTES

_MOST_MESSAGE_BYTES = 65_536


async def silence_before_the_end(bench: Bench) -> None:
    request = bench.chat(filler_bytes=50_000)
    assert request.body is not None
    first, *rest = body_messages(pieces_of(request.body))
    async with bench.stream() as stream:
        for message in (request_headers(request), first):
            await stream.send(message)
        early = await stream.receive_all(bench.patience.silence_s)
        expect(not early, f"before the end of the body came {PickerAnswer(tuple(early), stream.ended).described()}")
        for message in rest:
            await stream.send(message)
        expect(await stream.receive(), "the stream ended without an answer")


async def headers_first(bench: Bench) -> None:
    answer = await bench.ask(bench.chat(filler_bytes=100_000))
    expect(answer.refusal is None, answer.described())
    expect(answer.kinds[:1] == ["request_headers"], f"the first answer is {answer.described()}")
    expect(set(answer.kinds[1:]) == {"request_body"}, f"the order is {', '.join(answer.kinds)}")
    answer.picked()


async def streamed_answers(bench: Bench) -> None:
    answer = await bench.ask(bench.chat())
    answer.picked()
    bodies = [one.request_body.response for one in answer.messages if one.HasField("request_body")]
    expect(bodies, f"no answer to the body: {answer.described()}")
    expect(all(map(is_streamed, bodies)), "an answer to the body has no streamed_response")


async def bytes_unchanged(bench: Bench) -> str:
    """The two smallest bodies are no requests, so a picker may refuse them; the largest may be too large."""
    sizes = (MOST_CHUNK_BYTES, MOST_CHUNK_BYTES + 1, 1_000_000, bench.effort.large_body_bytes)
    bodies = [b"", b"1", *(chat_of(bench.fixture.model, size) for size in sizes)]
    refused = []
    for body in bodies:
        answer = await bench.ask(bench.chat(body=body))
        if answer.refusal is not None and (len(body) < 2 or (body is bodies[-1] and answer.refusal.status.code == 413)):
            answer.refused(400, 413)
            refused.append(f"{len(body):,} bytes: {answer.refusal.status.code}")
            continue
        answer.picked()
        expect_body(answer.body(), body)
    return ", ".join(refused)


async def small_chunks(bench: Bench) -> None:
    answer = await bench.ask(bench.chat(filler_bytes=300_000))
    answer.picked()
    largest = max((len(chunk.body) for chunk in answer.chunks()), default=0)
    expect(0 < largest <= _MOST_MESSAGE_BYTES, f"the largest chunk has {largest:,} bytes")


async def one_end(bench: Bench) -> None:
    async with bench.stream() as stream:
        answer = await ask(stream, bench.chat(filler_bytes=100_000))
        answer.picked()
        late = await stream.receive_all(bench.patience.silence_s)
    ends = [chunk.end_of_stream for chunk in answer.chunks()]
    expect(ends[-1:] == [True] and sum(ends) == 1, f"end_of_stream of the chunks: {ends}")
    expect(not late, f"after the end came {PickerAnswer(tuple(late)).described()}")


async def _echoed(bench: Bench, body: bytes, pieces: Sequence[bytes], trailers: bool = False) -> PickerAnswer:
    answer = await bench.ask(bench.chat(body=body), pieces, trailers)
    answer.picked()
    expect_body(answer.body(), body)
    return answer


async def many_small_pieces(bench: Bench) -> None:
    body = chat_of(bench.fixture.model, 400)
    await _echoed(bench, body, pieces_of(body, 1))


async def empty_last_message(bench: Bench) -> None:
    body = chat_of(bench.fixture.model, 400)
    await _echoed(bench, body, [body, b""])


async def trailers_end_the_body(bench: Bench) -> None:
    body = chat_of(bench.fixture.model, 20_000)
    try:
        answer = await _echoed(bench, body, pieces_of(body), trailers=True)
    except NoAnswer as error:
        raise CaseFailed(f"a body that request_trailers end: {error}") from None
    expect(answer.kinds[-1] == "request_trailers", f"the trailers are not answered: {answer.described()}")


async def second_end(bench: Bench) -> None:
    request = bench.chat()
    async with bench.stream() as stream:
        answer = await ask(stream, request)
        answer.picked()
        await stream.send(ProcessingRequest(request_body=HttpBody(end_of_stream=True)))
        late = await stream.receive_all(bench.patience.silence_s)
    expect(not late, f"a second end was answered with {PickerAnswer(tuple(late)).described()}")


async def inside_a_character(bench: Bench) -> None:
    body = bench.chat("Größe: 5 \N{EURO SIGN}").body or b""
    body = body.decode().replace("\\u20ac", "\N{EURO SIGN}").encode()
    at = body.index("\N{EURO SIGN}".encode()) + 1
    await _echoed(bench, body, [body[:at], body[at:]])


async def no_pick_on_body_answers(bench: Bench) -> None:
    answer = await bench.ask(bench.chat())
    answer.picked()
    bodies = [one.request_body.response for one in answer.messages if one.HasField("request_body")]
    late = [body for body in bodies if set_in(body.header_mutation, DESTINATION)]
    expect(not late, "an answer to the body sets the destination header, which gateways ignore there")


async def right_length(bench: Bench) -> None:
    answer = await bench.ask(bench.chat(filler_bytes=1_000))
    answer.picked()
    said, is_so = answer.header("content-length"), len(answer.body())
    expect(said is None or said == str(is_so), f"content-length {said}, body of {is_so} bytes")


async def unknown_length(bench: Bench) -> None:
    body = chat_of(bench.fixture.model, 5_000)
    answer = await bench.ask(bench.chat(body=body, with_length=False), pieces_of(body, 700))
    answer.picked()
    expect_body(answer.body(), body)


_MUST, _SHOULD = Requirement.MUST, Requirement.SHOULD
_STREAMING = CaseProfile.STREAMING

GROUP = CaseGroup(
    "B",
    "Order and bodies in full duplex",
    (
        ConformanceCase(
            12, "Nothing is sent before the end of the body.", "X", _SHOULD, _STREAMING, silence_before_the_end
        ),
        ConformanceCase(
            13,
            "The answer to the headers comes before those to the body.",
            "X, GAIE#3033",
            _MUST,
            _STREAMING,
            headers_first,
        ),
        ConformanceCase(
            14, "Answers to the body are `streamed_response`.", "X, GAIE#3035", _MUST, _STREAMING, streamed_answers
        ),
        ConformanceCase(
            15,
            "Bodies of 0 B, 1 B, 62,000 B, 62,001 B, 1 MB and 10 MB come back unchanged.",
            "X",
            _MUST,
            _STREAMING,
            bytes_unchanged,
        ),
        ConformanceCase(16, "No chunk has more than 64 KiB.", "L", _SHOULD, _STREAMING, small_chunks),
        ConformanceCase(
            17, "Exactly one chunk has `end_of_stream`, and it is the last message.", "X", _MUST, _STREAMING, one_end
        ),
        ConformanceCase(18, "A body may come in pieces of one byte.", "X", _MUST, _STREAMING, many_small_pieces),
        ConformanceCase(19, "An empty message may end the body.", "X", _MUST, _STREAMING, empty_last_message),
        ConformanceCase(
            20, "Request trailers end the body, and are answered.", "X", _MUST, _STREAMING, trailers_end_the_body
        ),
        ConformanceCase(21, "A second end of the body is ignored.", "GAIE#2988", _SHOULD, _STREAMING, second_end),
        ConformanceCase(22, "A body may be cut inside a UTF-8 character.", "X", _MUST, _STREAMING, inside_a_character),
        ConformanceCase(
            23,
            "No answer to the body sets the destination header.",
            "X, semantic-router#3899",
            _MUST,
            _STREAMING,
            no_pick_on_body_answers,
        ),
        ConformanceCase(24, "`content-length` is right, or not set.", "X", _MUST, _STREAMING, right_length),
        ConformanceCase(25, "A body without `content-length` is picked for.", "X", _MUST, _STREAMING, unknown_length),
    ),
)
