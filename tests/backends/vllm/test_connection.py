import asyncio
from contextlib import suppress

import pytest

from backends.vllm.connection import Connection, LargeAnswer

PIECE = bytes(60_000)


class Wire:
    def __init__(self):
        self.closing = False

    def write(self, data):
        pass

    def abort(self):
        self.closing = True

    def is_closing(self):
        return self.closing


async def answered(*data, max_bytes):
    connection = Connection()
    connection.connection_made(Wire())
    asked = asyncio.ensure_future(connection.ask(b"GET", max_bytes))
    await asyncio.sleep(0)
    for piece in data:
        connection.data_received(piece)
    return connection, asked


@pytest.mark.parametrize("status", [b"200 OK", b"404 Not Found"])
async def test_an_endless_answer_leaves_no_bytes_behind(status):
    head = b"HTTP/1.1 " + status + b"\r\n\r\n"
    connection, asked = await answered(head + PIECE, PIECE, max_bytes=100_000)
    with suppress(LargeAnswer):
        await asked
    assert connection._pieces == [] and not connection.reusable


async def test_a_whole_answer_is_not_kept_beside_its_copy():
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 60000\r\n\r\n"
    connection, asked = await answered(head + PIECE, max_bytes=100_000)
    assert (await asked).body == PIECE
    assert connection._pieces == []
