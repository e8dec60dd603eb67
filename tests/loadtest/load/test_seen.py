"""Every way in which an answer can end is told from the others."""

import asyncio
import json

import pytest

from loadtest.load.http import Client
from loadtest.load.seen import Kind, observe

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-warmroute-worker: w:1\r\n"
STREAM += b"transfer-encoding: chunked\r\n\r\n"
USAGE = {"usage": {"completion_tokens": 2}}
ERROR = {"error": {"message": "why", "type": "upstream_error", "param": None, "code": "worker_died_in_stream"}}


def event(content):
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return b"data: " + data + b"\n\n"


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(content, status=b"200 OK"):
    body = json.dumps(content).encode()
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


DELTA = {"choices": [{"delta": {"content": "word"}}]}
DONE = event(b"[DONE]")
END = b"0\r\n\r\n"
CASES = {
    "a stream": (STREAM + chunk(b": comment\n\n") + chunk(event(DELTA) + event(USAGE) + DONE) + END, Kind.COMPLETE),
    "a short stream": (STREAM + chunk(event({"usage": {"completion_tokens": 1}}) + DONE) + END, Kind.BROKEN),
    "no usage": (STREAM + chunk(event(DELTA) + DONE) + END, Kind.BROKEN),
    "no end": (STREAM + chunk(event(DELTA) + event(USAGE)) + END, Kind.BROKEN),
    "behind the end": (STREAM + chunk(event(USAGE) + DONE + event(DELTA)) + END, Kind.BROKEN),
    "an error event": (STREAM + chunk(event(DELTA)) + chunk(event(ERROR) + DONE) + END, Kind.ERROR_EVENT),
    "an error event without end": (STREAM + chunk(event(ERROR)) + END, Kind.BROKEN),
    "a cut stream": (STREAM + chunk(event(DELTA)), Kind.CUT),
    "a cut body": (whole({**DELTA, **USAGE})[:-5], Kind.CUT),
    "an answer": (whole({"choices": [{"message": {"content": "a word"}}], **USAGE}), Kind.COMPLETE),
    "an error": (whole(ERROR, b"503 Service Unavailable"), Kind.REFUSED),
    "an error without code": (whole({"detail": "no"}, b"500 Oops"), Kind.BROKEN),
    "nothing": (b"", Kind.UNANSWERED),
    "half a head": (STREAM[:30], Kind.UNANSWERED),
    "no HTTP": (b"hello\r\n\r\n", Kind.BROKEN),
}


@pytest.mark.parametrize("case", CASES)
async def test_kinds(case):
    said, kind = CASES[case]

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", 8_192)
    seen = await observe(client, "/v1/chat/completions", {"max_tokens": 2}, dawdle_s=0.001)
    client.close()
    server.close()
    assert seen.kind is kind, seen
    assert (seen.error is None) == (kind is Kind.COMPLETE)
    if case == "a stream":
        assert (seen.text, seen.completion_tokens, len(seen.stamps_s)) == ("word", 2, 1) and 0.0 < seen.ttft_s < 5.0
    if kind is Kind.ERROR_EVENT:
        assert (seen.code, seen.worker, seen.text) == ("worker_died_in_stream", "w:1", "word")


async def test_nobody_listens():
    seen = await observe(Client("http://127.0.0.1:1"), "/v1/completions", {"max_tokens": 1})
    assert seen.kind is Kind.UNANSWERED


async def read(*frames, exact=False):
    """Return what is seen of a stream of these frames, and of nothing else."""

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(STREAM + b"".join(map(chunk, frames)) + END)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        client = Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base/")
        seen = await observe(client, "/v1/chat/completions", {"max_tokens": 9}, exact=exact)
        client.close()
    return seen


def delta(**fields):
    return event({"choices": [{"delta": fields}]})


async def test_the_first_token_is_no_role_chunk_and_may_be_reasoning():
    seen = await read(delta(role="assistant", content=""), delta(reasoning="hm"), delta(content="yes"), DONE)
    assert (seen.kind, seen.text, len(seen.stamps_s)) == (Kind.COMPLETE, "yes", 2)
    assert seen.chunk_s <= seen.stamps_s[0] <= seen.answer_s == seen.stamps_s[1]


async def test_a_token_without_text_counts_behind_the_first_text():
    silent, end = delta(content=""), event({"choices": [{"delta": {"content": ""}, "finish_reason": "stop"}]})
    seen = await read(delta(role="assistant", content=""), silent, delta(content="a"), silent, end, DONE)
    assert len(seen.stamps_s) == 2
    assert len((await read(silent, end, DONE)).stamps_s) == 1  # the only token of an answer may have no text


async def test_an_answer_of_any_length_is_complete_where_no_length_is_required():
    assert (await read(event(DELTA), event(USAGE), DONE)).error is None
    assert (await read(event(DELTA), event(USAGE), DONE, exact=True)).kind is Kind.BROKEN


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        ([event(DELTA)] * 5 + [event(ERROR), DONE], Kind.ERROR_EVENT),
        ([event(DELTA)] * 5, Kind.BROKEN),
        ([event(USAGE), DONE], Kind.BROKEN),
    ],
    ids=["an error event after five chunks", "no [DONE]", "no text at all"],
)
async def test_a_stream_with_status_200_can_be_a_failure(frames, kind):
    assert (await read(*frames)).kind is kind


async def test_lines_may_end_as_the_standard_allows():
    assert (await read(b'data:{"choices":[{"text":"a"}]}\r', b"\n\r\n", b"data: [DONE]\r\n\r\n")).text == "a"
