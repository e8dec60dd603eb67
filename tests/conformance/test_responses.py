"""Every row of the response tables over real sockets: the client's view, and whether the connection is reused."""

import asyncio

import pytest

from tests.conformance.corpus import BODY, H, L, P
from tests.conformance.response_cases import EVENT, JSON, OK, RESPONSE_CASES, SSE, framed
from tests.support.waiting import eventually

GOOD = OK + L + b"\r\n" + BODY
REQUEST = P + H + L + b"\r\n" + BODY


def worker(raw, closes):
    """Answer the first request with `raw`, and all others with an ordinary response."""

    async def script(script):
        first = not worker_seen
        worker_seen.append(script.seen.connection)
        await script.say(raw if first else GOOD)
        if first and closes:
            script.writer.close()

    worker_seen = []
    script.seen = worker_seen
    return script


async def truncated(client, case):
    """Read until the close. The framing must show that bytes are missing."""
    raw = await client.closed()
    head, _, rest = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert rest == case.raw[len(case.raw) - len(rest) :]
    assert not rest.endswith(b"\r\n0\r\n\r\n")
    if b"ontent-" in head and b"ransfer-" not in head:
        assert len(rest) < int(head.lower().partition(b"content-length:")[2].split()[0])


async def judge(client, case):
    reply = await client.read(bodiless=case.bodiless)
    assert reply.status == case.status
    if case.gets == "error":
        assert reply.code == case.code
    elif case.gets == "event":
        assert reply.body.startswith(case.content)
        assert case.code.encode() in reply.body[len(case.content) :]
        assert reply.body.endswith(b"data: [DONE]\n\n")
    else:
        assert reply.body == case.content
    lines = reply.head.split(b"\r\n")
    names = [line.partition(b":")[0].lower() for line in lines[1:]]
    assert set(case.has) <= set(lines)
    assert not set(case.lacks) & set(names)
    assert names.count(b"x-request-id") == 1
    assert b"\n" not in reply.head.replace(b"\r\n", b"") and b"\r" not in reply.head.replace(b"\r\n", b"")
    if reply.header(b"connection") == b"close":
        assert not case.kept


@pytest.mark.parametrize("name", RESPONSE_CASES)
async def test_response(rig, name):
    case = RESPONSE_CASES[name]
    script = worker(case.raw, case.closes)
    gate = await rig(script, timeouts={"stream_idle_s": 5.0, "first_event_s": 5.0, "upstream_idle_s": 4.0})
    client = await gate.connect()
    client.writer.write(case.request)
    if case.gets == "cut":
        await truncated(client, case)
    else:
        await judge(client, case)
        if case.kept:  # nothing of the answer is left on the connection
            assert (await client.ask(REQUEST)).body == BODY
        else:
            assert (await client.closed()).strip() == b""
    await eventually(lambda: gate.idle)
    assert (await gate.ask(REQUEST)).body == BODY
    connections = script.seen
    assert (connections[1] == connections[0]) is case.pooled


STREAM = SSE + framed(EVENT) + framed(b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n') + b"0\r\n\r\n"
PLAIN = OK + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(JSON) + JSON


@pytest.mark.parametrize(
    "raw", [STREAM, PLAIN, OK + b"Transfer-Encoding: chunked\r\n\r\n" + framed(JSON) + b"0\r\n\r\n"]
)
async def test_a_response_cut_at_any_byte_is_visible_to_the_client(rig, raw):
    """The client sees an error, an error event, or incomplete framing."""
    cuts = iter(range(len(raw)))

    async def script(script):
        await script.say(raw[: next(cuts)])
        script.writer.close()

    gate = await rig(script, health={"failure_threshold": 1_000_000})
    for cut in range(len(raw)):
        client = await gate.connect()
        client.writer.write(REQUEST)
        try:
            reply = await client.read()
        except asyncio.IncompleteReadError:
            continue
        if reply.status == 200:
            assert b"worker_died_in_stream" in reply.body, cut
        else:
            assert (reply.status, reply.code) == (503, "worker_failed")
    await eventually(lambda: gate.idle)
    assert gate.gateway.statistics()["pools"]["idle"] == 0
