"""The load generator's requests, and its own reading of answers: what counts as served, however the bytes are cut."""

import asyncio
import contextlib
import itertools
import json

import pytest

from loadtest.bench import frames
from loadtest.bench.bodies import next_turns
from loadtest.bench.caller import ClosedLoop, open_loop, send_each_once

GOOD = frames.answer(100, 96)
BODY = GOOD.partition(b"\r\n\r\n")[2]
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


@contextlib.asynccontextmanager
async def serving(answer):
    """A server that answers whatever comes with `answer`: bytes, or a list of pieces, None closing the connection."""

    async def handle(reader, writer):
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                for piece in answer if isinstance(answer, list) else [answer]:
                    if piece is None:
                        writer.transport.abort()
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.001)
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def asked(answer):
    async with serving(answer) as url:
        return await send_each_once(url, [b"GET / HTTP/1.1\r\n\r\n"], 1)


@pytest.mark.parametrize("whole", [GOOD, CHUNKED])
@pytest.mark.parametrize("cut", [1, 12, 20, 60, -3, -1])
async def test_a_whole_answer_counts_wherever_it_is_cut(whole, cut):
    tally = await asked([whole[:cut], whole[cut:]])
    assert (tally.good, tally.errors, len(tally.first_byte_s)) == (1, 0, 1)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy", "503: busy"),
        (frames.json_response(b'{"choices":[]}'), "not whole"),
        ([GOOD[:-5], None], "connection closed"),
        ([None], "connection closed"),
    ],
)
async def test_anything_else_is_an_error(answer, reason):
    tally = await asked(answer)
    assert (tally.good, tally.errors) == (0, 1)
    assert reason in tally.reasons[0]


async def test_a_closed_loop_goes_on_after_the_server_closed_a_connection():
    closing = GOOD.replace(b"200 OK\r\n", b"200 OK\r\nConnection: close\r\n")
    async with serving([closing, None]) as url:
        loop = ClosedLoop(url, iter([b"GET / HTTP/1.1\r\n\r\n"] * 9), 2)
        await loop.drain()
    assert (loop.tally.good, loop.tally.errors) == (9, 0)


async def test_an_open_loop_sends_at_its_rate():
    async with serving(GOOD) as url:
        tally = await open_loop(url, iter([b"GET / HTTP/1.1\r\n\r\n"] * 10_000), rate=200, window_s=1.0, seed=1)
    assert tally.errors == 0
    assert 150 < tally.good < 250
    assert len(tally.first_byte_s) < tally.good


async def test_no_server_is_an_error():
    async with serving(GOOD) as url:
        pass
    tally = await send_each_once(url, [b"x"], 1)
    assert tally.errors == 1
    assert "no connection" in tally.reasons[0]


def test_each_next_turn_asks_something_new_after_the_same_conversation():
    windows = [list(itertools.islice(next_turns("http://a:1", {}), 2)) for _ in range(2)]
    asked = [json.loads(request.partition(b"\r\n\r\n")[2])["messages"] for window in windows for request in window]
    assert all(messages[:-1] == asked[0][:-1] and len(messages) == 41 for messages in asked)
    assert len({messages[-1]["content"] for messages in asked}) == 4
