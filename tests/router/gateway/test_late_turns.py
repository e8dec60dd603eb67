"""A gateway whose event loop stood still, or whose process was stopped: bytes wait in its sockets, timers are due."""

import os
import threading
import time

import pytest

from tests.support.answers import DONE, END, STREAM_HEAD, chunk, event, json_head
from tests.support.raw_client import PLAIN, post
from tests.support.waiting import eventually

LIMIT_S = 0.1
STILL_S = 5 * LIMIT_S
REST = chunk(event("b")) + chunk(DONE) + END


def stand_still(fd, data):
    """Block the event loop beyond the limit while another thread writes the worker's bytes."""
    writer = threading.Timer(LIMIT_S / 4, os.write, (fd, data))
    writer.start()
    time.sleep(STILL_S)
    writer.join()


def begins(data, sockets):
    async def script(script):
        sockets.append(script.writer.get_extra_info("socket").fileno())
        await script.say(data)
        await script.gone()

    return script


@pytest.mark.parametrize("limit", ["stream_idle_s", "total_s"])
async def test_a_stream_whose_bytes_have_arrived_goes_on(rig, limit):
    sockets = []
    gate = await rig(begins(STREAM_HEAD + chunk(event("a")), sockets), timeouts={limit: LIMIT_S})
    client = await gate.send(post())
    await client.reader.readuntil(event("a"))
    stand_still(sockets[0], REST)
    assert b"error" not in await client.reader.readuntil(DONE)
    assert gate.recorded.events[-1] == "finished 200"


@pytest.mark.parametrize("limit", ["first_event_s", "total_s"])
async def test_an_answer_that_has_arrived_is_in_time(rig, limit):
    sockets = []
    gate = await rig(begins(b"", sockets), timeouts={limit: LIMIT_S})
    client = await gate.send(post())
    await eventually(lambda: sockets)
    stand_still(sockets[0], STREAM_HEAD + REST)
    assert (await client.read()).status == 200
    assert "retry sent" not in gate.recorded.events


async def test_the_body_of_an_error_that_has_arrived_is_passed_on(rig, monkeypatch):
    monkeypatch.setattr("router.gateway.flow.attempt.attempt.ERROR_BODY_S", LIMIT_S)
    sockets, body = [], b'{"error":{"message":"no"}}'
    gate = await rig(begins(json_head(len(body), b"500 No"), sockets))
    client = await gate.send(post(body=PLAIN))
    (request,) = await started(gate)
    await eventually(
        lambda: request._outbound.flow.attempt and request._outbound.flow.attempt.state.name == "ERROR_BODY"
    )
    stand_still(sockets[0], body)
    reply = await client.read()
    assert (reply.status, reply.body) == (500, body)


async def started(gate):
    await eventually(lambda: gate.gateway._parts.requests.running)
    return list(gate.gateway._parts.requests.running)


async def test_a_body_that_has_arrived_is_in_time(rig):
    sockets = []
    gate = await rig(begins(json_head(2) + b"{}", sockets), timeouts={"client_body_s": LIMIT_S})
    client = await gate.connect()
    request = post(body=PLAIN)
    client.writer.write(request[:-5])
    await eventually(lambda: [one for one in gate.gateway._parts.drain.connections if one._framer.state.name == "BODY"])
    stand_still(client.writer.get_extra_info("socket").fileno(), request[-5:])
    assert (await client.read()).status == 200


async def test_a_stream_that_has_really_stalled_ends(rig):
    gate = await rig(begins(STREAM_HEAD + chunk(event("a")), []), timeouts={"stream_idle_s": LIMIT_S})
    client = await gate.send(post())
    await client.reader.readuntil(event("a"))
    time.sleep(STILL_S)  # noqa: ASYNC251, the point of the test
    assert b"stream_idle_timeout" in await client.reader.readuntil(DONE)
