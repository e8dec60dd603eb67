"""Workers that break the protocol: no client waits beyond its deadline, no memory grows, no connection is reused."""

import asyncio
from itertools import repeat

import pytest

from tests.support.answers import DONE, END, answer_stream, chunk, event, json_head, saying, silent
from tests.support.memory import resident_bytes, status_bytes
from tests.support.raw_client import post
from tests.support.scripted_worker import SocketWorker
from tests.support.waiting import WAIT_S, delivered, eventually

LIMITS = {"first_event_s": 0.4, "stream_idle_s": 0.4, "total_s": 2.0}
FLOOD_BYTES = 16_777_216
"""More than the kernel buffers of a loopback connection, so that a reader that keeps all bytes is noticed."""


async def flood(script, piece):
    """Write `piece` until the other side closes. Return the number of bytes written."""
    sent = 0
    try:
        while not script.writer.is_closing() and sent < 1_000_000_000:
            await script.say(piece)
            sent += len(piece)
    except ConnectionError:
        pass
    script.seen.flooded_bytes = sent
    script.seen.gone.set()


def each_byte(data):
    return (data[index : index + 1] for index in range(len(data)))


def head(*lines):
    return b"\r\n".join([b"HTTP/1.1 200 OK", *lines]) + b"\r\n\r\n"


STREAM = head(b"content-type: text/event-stream", b"transfer-encoding: chunked")


def floods(piece, *before):
    async def script(script):
        await script.say(*before)
        await flood(script, piece)

    return script


def drips(parts, gap_s):
    async def script(script):
        await script.drip(parts(), gap_s)

    return script


# More that breaks off at once is in `tests.router.gateway.test_failover`.
BEFORE_AN_EVENT = {
    "silent": silent,
    "drips its head": drips(lambda: each_byte(b"HTTP/1.1 200 OK\r\nx-slow: " + b"y" * 10_000), 0.02),
    "stops in its head": saying(b"HTTP/1.1 200 OK\r\ncontent-ty"),
    "sends garbage": saying(bytes(range(256)) * 16),
    "sends 5 GB of header": floods(b"h" * 65_536, b"HTTP/1.1 200 OK\r\nx-huge: "),
    "sends endless header lines": floods(b"x-one: more\r\n" * 500, b"HTTP/1.1 200 OK\r\n"),
    "floods 1xx": floods(b"HTTP/1.1 102 Processing\r\n\r\n" * 100),
    "drips 1xx": drips(lambda: each_byte(b"HTTP/1.1 102 Processing\r\n\r\n" * 400), 0.005),
    "sends a gigantic chunk extension": floods(b"e" * 65_536, STREAM, b"5;ext="),
    "comments for ever": floods(b"b\r\n: comment\n\n\r\n" * 400, STREAM),
    "sends endless trailers": floods(b"x-trailer: more\r\n" * 400, STREAM, b"0\r\n"),
    "announces a negative length": saying(head(b"content-length: -5"), b"hello"),
    "sends an enormous chunk size": saying(STREAM, b"f" * 40 + b"\r\nhello"),
}
IN_A_STREAM = {
    "silent": silent,
    "drips its stream": drips(lambda: each_byte(b"400\r\n" + b"x" * 1_024), 0.1),
    "drips small chunks": drips(lambda: each_byte(b"1\r\nx\r\n" * 200), 0.1),
    "drips comments": drips(lambda: repeat(b"3\r\n:\n\n\r\n"), 0.7),
    "extends a chunk for ever": floods(b"e" * 65_536, b"5;ext="),
    "never ends its trailers": floods(b"x-trailer: more\r\n" * 400, b"0\r\n"),
}


@pytest.mark.parametrize("hostile", BEFORE_AN_EVENT)
async def test_a_worker_that_breaks_http_before_the_first_event_is_replaced(rig, hostile):
    served = []

    async def first_is_hostile(script):
        served.append(script.seen)
        await (BEFORE_AN_EVENT[hostile] if len(served) == 1 else answer_stream)(script)

    gate = await rig(first_is_hostile, first_is_hostile, timeouts=LIMITS)
    before = resident_bytes()
    reply = await gate.ask(post())
    assert reply.status == 200, "the limit of the whole request has not been reached"
    assert reply.body.count(b"data: ") == 5
    assert getattr(served[0], "flooded_bytes", 0) < FLOOD_BYTES
    assert status_bytes("VmRSS") - before < 8_000_000
    await eventually(lambda: gate.idle)
    await all_connections_are_good(gate)


async def all_connections_are_good(gate):
    """Check that every remaining connection is idle and answers the next request."""
    pools = gate.gateway.statistics()["pools"]
    assert pools["open"] == pools["idle"]
    for _ in range(4):
        assert (await gate.ask(post())).body.count(b"data: ") == 5
    assert gate.idle


# once an answer has begun


@pytest.mark.parametrize("hostile", IN_A_STREAM)
async def test_a_started_stream_that_breaks_http_ends_at_its_deadline(rig, hostile):
    async def begins_well(script):
        await script.say(STREAM, chunk(event("a")))
        await IN_A_STREAM[hostile](script)

    limits = {**LIMITS, "stream_idle_s": 0.5, "total_s": 1.6}
    gate = await rig(begins_well, timeouts=limits)
    before = resident_bytes()
    client = await gate.send(post())
    received = 0
    while data := await asyncio.wait_for(client.reader.read(65_536), WAIT_S):
        received += len(data)
        if data.endswith(END):
            break
    trickle = hostile.startswith(("drips", "silent"))
    assert status_bytes("VmRSS") - before < 16_000_000
    code = "stream_idle_timeout" if trickle else "total_timeout"
    assert [one[:2] for one in gate.counted("errors")] == [(code, "stream")]
    await eventually(lambda: gate.idle)
    await eventually(lambda: gate.gateway.statistics()["pools"]["open"] == 0)


async def test_slow_events_and_large_events_are_not_cut(rig):
    async def slow_but_sound(script):
        await script.say(STREAM)
        await script.drip([chunk(event("a"))] * 8, 0.15)  # longer in all than the limit of an idle stream
        await script.say(b"%x\r\ndata: " % (8 + 100 * 20))
        await script.drip([b"x" * 100] * 20, 0.075)  # one event of two kilobytes, in a second and a half
        await script.say(b"\n\n\r\n", chunk(DONE), END)

    gate = await rig(slow_but_sound, timeouts={**LIMITS, "total_s": 10.0})
    reply = await gate.ask(post())
    assert reply.body.endswith(DONE)
    assert gate.counted("errors") == []


# wrong lengths, and unsolicited answers


class Hasty(SocketWorker):
    """Answers after the head of a request and does not read its body. It closes once `may_close` is set."""

    def __init__(self):
        super().__init__()
        self.may_close = asyncio.Event()

    async def serve(self, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(json_head(2) + b"{}")
        await self.may_close.wait()


async def test_an_early_response_is_relayed_and_its_connection_closed(rig):
    body = b'{"model":"m","messages":[],"pad":"' + b"x" * FLOOD_BYTES + b'"}'

    worker = await Hasty().start()
    gate = await rig()
    gate.join(worker)
    client = await gate.connect()
    reply = await client.ask(post(body=body))
    assert (reply.status, reply.body) == (200, b"{}")
    pools = gate.gateway.statistics()["pools"]
    assert (pools["open"], pools["idle"]) in ((0, 0), (1, 0))  # never pooled: half a request is on its way
    worker.may_close.set()
    await eventually(lambda: gate.gateway.statistics()["pools"]["open"] == 0)
    assert gate.idle
    assert gate.gateway.statistics()["buffered_body_bytes"] == 0
    await worker.stop()


# idle connections


async def test_a_request_on_a_closed_idle_connection_is_resent_without_a_retry(rig):
    async def answers_and_closes_late(script):
        await answer_stream(script)
        # the worker closes just as the next request arrives, so nobody reads it
        script.writer.transport.pause_reading()

        async def close():
            await closing.wait()
            script.writer.transport.abort()

        tasks.append(asyncio.create_task(close()))
        await closing.wait()

    closing, tasks = asyncio.Event(), []
    gate = await rig(answers_and_closes_late, retries={"budget_ratio": 0.0}, timeouts=LIMITS)
    await gate.ask(post())
    client = await gate.send(post())
    await eventually(lambda: gate.recorded.events.count("ticket") == 2)
    await delivered()
    closing.set()
    assert (await client.read()).body.count(b"data: ") == 5
    assert len(gate.counted("redials")) == 1
    assert not any(each.startswith(("retry", "failed")) for each in gate.recorded.events)


# a client's own mistakes
