"""Writes to a client: together at the end of the iteration, at once, and not at all after it has left."""

import asyncio

import pytest

from router.gateway.http.client.output import LARGE_WRITE_BYTES, ClientOutput
from router.gateway.http.write_coalescer import WriteCoalescer
from tests.support.waiting import iterations


class Transport:
    """Record writes and the way of the end."""

    def __init__(self, *, half_close=True):
        self.written, self.ended, self.limits, self.half_close = [], None, None, half_close

    def write(self, data):
        self.written.append(data)

    def is_closing(self):
        return self.ended in ("closed", "aborted")

    def can_write_eof(self):
        return self.half_close

    def write_eof(self):
        self.ended = "half-closed"

    def close(self):
        self.ended = "closed"

    def abort(self):
        self.ended = "aborted"

    def get_write_buffer_size(self):
        return 7

    def set_write_buffer_limits(self, high, low):
        self.limits = high, low


@pytest.fixture
async def output():
    return ClientOutput(WriteCoalescer(asyncio.get_running_loop()))


@pytest.fixture
async def transport(output):
    transport = Transport()
    output.connected(transport)
    return transport


async def test_short_writes_are_one_write_at_the_end_of_the_iteration(output, transport):
    output.write(b"ab")
    output.write(b"c")
    assert transport.written == []
    await iterations(1)
    assert transport.written == [b"abc"]
    output.write(b"d")
    await iterations(1)
    assert transport.written == [b"abc", b"d"]


async def test_a_large_write_takes_the_waiting_bytes_with_it_at_once(output, transport):
    large = b"x" * (LARGE_WRITE_BYTES + 1)
    output.write(b"head")
    output.write(large)
    assert transport.written == [b"head" + large]
    await iterations(1)
    assert transport.written == [b"head" + large]


async def test_hasty_bytes_wait_only_while_the_gateway_is_busy(output, transport):
    for quiet, at_once in ((True, [b"ab"]), (False, [b"ab"])):
        output._outbox.quiet = quiet
        output.write(b"ab")
        output.hasten()
        assert transport.written == at_once
    await iterations(1)
    assert transport.written == [b"ab", b"ab"]


async def test_write_now_does_not_wait(output, transport):
    output.write_now(b"token")
    assert transport.written == [b"token"]


@pytest.mark.parametrize(("half_close", "ended"), [(True, "half-closed"), (False, "closed")], ids=["tcp", "tls"])
async def test_the_end_comes_after_the_waiting_bytes(output, half_close, ended):
    transport = Transport(half_close=half_close)
    output.connected(transport)
    output.write(b"refused")
    output.end()
    assert (transport.written, transport.ended) == ([b"refused"], ended)


async def test_close_writes_the_waiting_bytes_and_abort_discards_them(output):
    closed, aborted = Transport(), Transport()
    output.connected(closed)
    output.write(b"last")
    output.close()
    output.connected(aborted)
    output.write(b"lost")
    output.abort()
    await iterations(1)
    assert (closed.written, closed.ended) == ([b"last"], "closed")
    assert (aborted.written, aborted.ended) == ([], "aborted")


async def test_unsent_bytes_are_those_of_the_transport_and_their_limit_is_set_there(output, transport):
    output.allow_unsent(400)
    assert transport.limits == (400, 100)
    assert output.unsent_bytes == 7


async def test_nothing_is_written_after_the_client_has_left(output, transport):
    output.write(b"waits")
    output.lost()
    output.write_now(b"late")
    output.write(b"late")
    output.allow_unsent(1)
    for ending in (output.end, output.close, output.abort):
        ending()
    await iterations(1)
    assert (transport.written, transport.ended, transport.limits, output.unsent_bytes) == ([], None, None, 0)
