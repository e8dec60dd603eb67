"""Every row of the request tables over real sockets: the response, the worker's view, and the next request."""

import asyncio

import pytest

from tests.conformance.request_cases import REQUEST_CASES
from tests.support.waiting import eventually

PROBE = b"GET /livez HTTP/1.1\r\nHost: gw\r\nX-Request-Id: probe\r\n\r\n"
# Ours, and none that a client's own headers could be taken for.


async def answers(client, case):
    """Read the expected number of responses, and the interim ones before them."""
    replies = [await client.read(bodiless=case.bodiless) for _ in case.statuses]
    assert tuple(reply.status for reply in replies) == case.statuses
    for reply in replies:
        assert reply.header(b"x-request-id") not in (None, b"probe")
    if case.code is not None and not case.bodiless:
        assert replies[-1].code == case.code
    closing = replies[-1].header(b"connection") == b"close"
    assert closing is not case.kept
    return sum(len(reply.interim) for reply in replies)


async def ends(client, case):
    """Check the bytes after the responses: one response to the probe, or none."""
    if case.kept:
        reply = await client.read()
        assert (reply.status, reply.header(b"x-request-id")) == (200, b"probe")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.read(1), 0.005)
    else:
        assert await client.closed() == b""


def compare(case, worker):
    assert worker.left_over == b""
    assert len(worker.received) == len(case.forwarded)
    for seen, expected in zip(worker.received, case.forwarded, strict=True):
        assert (seen.lines[0], seen.body) == (expected.line, expected.body)
        assert len(seen.values(b"host")) == 1
        for line in expected.has:
            assert line in seen.lines
        assert not set(expected.lacks) & set(seen.names)
        assert b"probe" not in seen.values(b"x-request-id")


@pytest.mark.parametrize("name", REQUEST_CASES)
async def test_request_row_with_a_pipelined_request_after_it(recording, name):
    case = REQUEST_CASES[name]
    gate, worker = recording
    client = await gate.connect()
    client.writer.write(case.raw + PROBE)
    await answers(client, case)
    await ends(client, case)
    compare(case, worker)
    await eventually(lambda: gate.gateway.statistics()["buffered_body_bytes"] == 0)


@pytest.mark.parametrize("name", [name for name, case in REQUEST_CASES.items() if case.kept or case.continues])
async def test_request_row_with_a_request_after_its_response(recording, name):
    case = REQUEST_CASES[name]
    gate, worker = recording
    client = await gate.connect()
    head, end, rest = case.raw.partition(b"\r\n\r\n")
    if case.continues:
        client.writer.write(head + end)
        assert (await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), 5)) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(rest)
    else:
        client.writer.write(case.raw)
    assert await answers(client, case) == 0
    if case.kept:
        client.writer.write(PROBE)
    await ends(client, case)
    compare(case, worker)
    await eventually(lambda: gate.gateway.statistics()["buffered_body_bytes"] == 0)
