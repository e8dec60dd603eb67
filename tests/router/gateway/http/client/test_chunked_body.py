"""A read with tens of thousands of chunks is handled over several loop iterations."""

from __future__ import annotations

from router.config.model import LimitsConfig
from router.gateway.http.client.chunked_body import CHUNKS_PER_ITERATION, ChunkedBody
from router.gateway.http.client.request_framer import RequestFramer
from router.requests.body_buffer_limit import BodyBufferLimit
from tests.support.answers import answer_json
from tests.support.raw_client import PLAIN, post

HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: gw\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)
CONTENT = b'{"model":"m","prompt":"' + b"x" * 10 * CHUNKS_PER_ITERATION + b'"}'


def in_chunks(content: bytes, extension: bytes = b"") -> bytes:
    return b"".join(b"1%s\r\n%c\r\n" % (extension, byte) for byte in content) + b"0\r\n\r\n"


def test_one_call_reads_a_bounded_number_of_chunks() -> None:
    for extension in (b"", b";a=b"):
        chunks, data, calls = ChunkedBody(1_000), in_chunks(CONTENT, extension), 0
        while not chunks.complete:
            before = chunks.content.tell()
            data = chunks.feed(data)
            calls += 1
            assert chunks.content.tell() - before <= CHUNKS_PER_ITERATION
            assert chunks.more is not chunks.complete
        assert chunks.content.getvalue() == CONTENT and data == b""
        assert calls >= 10


def test_the_framer_reports_that_unread_chunks_are_left() -> None:
    limits = LimitsConfig()
    framer = RequestFramer(limits, BodyBufferLimit(limits), lambda head: None)
    framer.feed(HEAD + in_chunks(CONTENT))
    request = framer.next()
    while request is None:
        assert framer.stopped
        request = framer.next()
    assert request[1] == CONTENT and not framer.stopped and not framer.pending_bytes


async def test_other_clients_are_served_during_a_body_of_many_chunks(rig) -> None:
    gate = await rig(answer_json)
    slow = await gate.send(HEAD + in_chunks(CONTENT) + post(body=PLAIN))
    assert (await gate.ask(post(body=PLAIN))).status == 200
    assert [(await slow.read()).status for _ in range(2)] == [200, 200]
    assert CONTENT in [request.body for worker in gate.workers for request in worker.requests]
