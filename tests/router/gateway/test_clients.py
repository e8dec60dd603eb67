import asyncio
import gc
import logging

import msgspec
import pytest

from router.gateway.client import ClientConnection
from tests.support.answers import (
    DONE,
    END,
    STREAM,
    after,
    answer_json,
    chunk,
    event,
    json_head,
    saying,
    silent,
    stream_until,
    usage_event,
)
from tests.support.memory import resident_bytes
from tests.support.raw_client import PLAIN, get, post
from tests.support.waiting import WAIT_S, delivered, eventually, iterations, settled


async def left(gate, seen):
    """Check that the worker's socket closes, long before any timeout, and that no load stays reserved."""
    await asyncio.wait_for(seen.gone.wait(), WAIT_S)
    assert gate.recorded.events[-1] == "cancelled"
    assert gate.idle


async def test_a_client_that_leaves_during_prefill_frees_the_worker(rig):
    gate = await rig(silent)
    client = await gate.send(post())
    await gate.workers[0].arrived.wait()
    client.leave()
    await left(gate, gate.workers[0].requests[0])
    assert gate.counted("client_aborts") == [("before_first",)]
    assert gate.counted("requests")[0][3] == "499"


@pytest.mark.parametrize("how", ["close", "half-close", "abort"])
async def test_a_client_that_leaves_during_the_stream_frees_the_worker(rig, how):
    gate = await rig(saying(STREAM, chunk(event("a"))))
    client = await gate.send(post())
    await client.reader.readuntil(b"\n\n")
    match how:
        case "close":
            client.writer.close()
        case "half-close":
            client.writer.write_eof()
        case "abort":
            client.leave()
    await left(gate, gate.workers[0].requests[0])
    assert gate.counted("client_aborts") == [("stream",)]
    assert gate.counted("requests")[0][3] == "499"


async def test_an_aborted_stream_is_logged_with_its_progress(rig, caplog):
    endless = saying(STREAM, chunk(event("a")), chunk(event("b")))
    gate = await rig(endless, access_log=True)
    caplog.set_level(logging.INFO, "warmroute.access")
    client = await gate.send(post())
    received = await client.reader.readuntil(event("b"))
    client.leave()
    await left(gate, gate.workers[0].requests[0])
    (line,) = [vars(record) for record in caplog.records if record.name == "warmroute.access"]
    assert (line["status"], line["left_in"], line["events"], line["output_tokens"]) == (499, "streaming", 2, None)
    assert line["bytes"] >= len(received) and line["worker"] == gate.workers[0].id and line["attempts"] == 1


async def test_a_client_that_leaves_while_identified_or_queued_frees_its_request(rig):
    gate = await rig(answer_json)
    gate.identity.later = asyncio.Event()
    client = await gate.send(post())
    await eventually(lambda: gate.gateway.statistics()["streams"] == 1)
    client.leave()
    await eventually(lambda: gate.gateway.statistics()["streams"] == 0)
    assert gate.recorded.events == []
    gate.identity.later.set()
    assert (await gate.ask(post(body=PLAIN))).status == 200  # identified on the slow path
    gate.fleet.drain(gate.workers[0].id)
    client = await gate.send(post())
    await eventually(lambda: gate.gateway.statistics()["queued"] == 1)
    client.leave()
    await eventually(lambda: gate.gateway.statistics()["queued"] == 0)


async def test_a_client_that_leaves_while_the_worker_is_dialled_frees_the_ticket(rig):
    gate = await rig()
    # The dial itself is delayed. The kernel would connect at once to a listener that never accepts, and an address
    # without an answer could not be on loopback.
    await gate.add(answer_json)
    pools = gate.gateway._parts.pools
    started = asyncio.Event()

    async def slow(endpoint, dialler):
        started.set()
        await asyncio.Event().wait()

    pools._dial = slow
    client = await gate.send(post())
    await started.wait()
    client.leave()
    await eventually(lambda: gate.idle)
    assert gate.recorded.events == ["ticket", "cancelled"]


async def test_a_dial_above_connect_s_is_retried_on_another_worker(rig):
    gate = await rig(answer_json, answer_json, timeouts={"connect_s": 0.05})
    pools = gate.gateway._parts.pools
    dial = pools._dial
    calls = []

    async def first_is_slow(endpoint, dialler):
        calls.append(endpoint)
        if len(calls) == 1:
            await asyncio.Event().wait()
        await dial(endpoint, dialler)

    pools._dial = first_is_slow
    assert (await gate.ask(post(body=PLAIN))).status == 200
    assert gate.recorded.events[1] == "retry connect"
    assert calls[0] != calls[1]


async def test_a_client_that_leaves_within_a_request_places_nothing(rig):
    gate = await rig(answer_json)
    raw = post()
    for cut in (1, 30, len(raw) - 3):
        client = await gate.send(raw[:cut])
        await client.writer.drain()
        client.writer.close()
    await eventually(lambda: gate.gateway.statistics()["connections"] == 0)
    assert gate.recorded.events == []


async def test_a_stalled_reader_pauses_the_worker_and_memory_stays_bounded(rig):
    sent = 0

    async def firehose(script):
        nonlocal sent
        await script.say(STREAM)
        piece = chunk(b"data: " + b"x" * 65_000 + b"\n\n")
        for _ in range(1_000):
            await script.say(piece)
            sent += len(piece)
        await script.say(chunk(DONE), END)

    gate = await rig(firehose)
    before = resident_bytes()
    client = await gate.connect(limit=65_536)
    client.writer.transport.pause_reading()
    client.writer.write(post())
    await eventually(lambda: any(not each.writable for each in gate.gateway._parts.drain.connections))
    assert 500_000 < await settled(lambda: sent) < 30_000_000  # only the kernel buffers of three sockets
    assert resident_bytes(garbage=True) - before < 20_000_000
    client.writer.transport.resume_reading()
    total = 0
    while total < 65_000_000:
        total += len(await asyncio.wait_for(client.reader.read(1 << 20), 5))
    assert gate.recorded.events[-1].startswith(("finished", "progress"))


async def test_a_reader_stalled_above_stream_idle_s_is_closed(rig):
    async def firehose(script):
        await script.say(STREAM)
        while not script.writer.is_closing():
            await script.say(chunk(b"data: " + b"x" * 65_000 + b"\n\n"))

    gate = await rig(firehose, timeouts={"stream_idle_s": 0.2})
    client = await gate.connect(limit=65_536)
    client.writer.transport.pause_reading()
    client.writer.write(post())
    await eventually(lambda: "cancelled" in gate.recorded.events)
    assert not any(each.startswith("failed") for each in gate.recorded.events)
    await eventually(lambda: gate.gateway.statistics()["pools"]["open"] == 0)


async def test_a_slow_sender_gets_408(rig):
    gate = await rig(answer_json, timeouts={"client_header_s": 0.1, "client_body_s": 0.1, "client_idle_s": 0.1})
    client = await gate.send(b"POST /v1/comp")
    reply = await client.read()
    assert (reply.status, reply.code) == (408, "request_timeout")
    assert await client.closed() == b""
    client = await gate.send(post()[:-5])
    assert (await client.read()).status == 408
    client = await gate.connect()
    assert await client.closed() == b""  # idle from the start: nothing to answer
    client = await gate.connect()
    assert (await client.ask(get(b"/livez"))).status == 200
    assert await client.closed() == b""


async def test_single_bytes_do_not_extend_client_header_s(rig):
    gate = await rig(answer_json, timeouts={"client_header_s": 0.15})
    client = await gate.connect()
    dripping = asyncio.create_task(client.drip(post(extra=b"X-Pad: " + b"x" * 500 + b"\r\n"), 0.01))
    assert (await client.read()).status == 408
    dripping.cancel()


async def test_heads_and_bodies_above_their_limits_get_431_and_413(rig):
    gate = await rig(answer_json, limits={"max_header_bytes": 1_000, "max_body_bytes": 1_000})
    assert (await gate.ask(get(extra=b"X-Pad: " + b"x" * 900 + b"\r\n"))).status == 200
    reply = await gate.ask(get(extra=b"X-Pad: " + b"x" * 1_000 + b"\r\n"))
    assert (reply.status, reply.code) == (431, "headers_too_large")
    reply = await gate.ask(b"GET /" + b"x" * 2_000)
    assert reply.status == 431
    reply = await gate.ask(post(body=b"x" * 1_001))
    assert (reply.status, reply.code) == (413, "body_too_large")
    head = b"POST /v1/completions HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (await gate.ask(head + chunk(b"x" * 600) + chunk(b"x" * 600))).status == 413
    expecting = b"POST /v1/completions HTTP/1.1\r\nHost: gw\r\nContent-Length: 2000\r\nExpect: 100-continue\r\n\r\n"
    reply = await gate.ask(expecting)
    assert (reply.status, reply.interim) == (413, [])


async def test_a_refused_upload_still_gets_its_answer(rig):
    gate = await rig(answer_json, limits={"max_body_bytes": 1_000})
    client = await gate.send(post(body=b"x" * 3_000_000))
    reply = await client.read()
    assert (reply.status, reply.header(b"connection")) == (413, b"close")
    client.writer.close()
    await eventually(lambda: gate.gateway.statistics()["connections"] == 0)


def buffered(gate):
    return gate.gateway.statistics()["buffered_body_bytes"]


async def test_a_body_above_the_limit_of_all_bodies_gets_503(rig):
    go_on = asyncio.Event()

    gate = await rig(after(go_on), limits={"max_buffered_body_bytes": 10_000, "max_body_bytes": 50_000})
    body = b'{"model":"m","messages":[],"x":"%s"}' % (b"x" * 6_000)
    first = await gate.send(post(body=body))
    await gate.workers[0].arrived.wait()
    assert buffered(gate) == len(body)  # kept as long as another worker may need it
    reply = await gate.ask(post(body=body))
    assert (reply.status, reply.code) == (503, "too_many_requests")
    assert int(reply.header(b"retry-after")) >= 1
    head = b"POST /v1/completions HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (await gate.ask(head + chunk(b"x" * 2_000) + chunk(b"x" * 2_000))).status == 503
    assert (await gate.ask(post(body=b"x" * 10_001))).status == 413  # would never fit
    assert buffered(gate) == len(body)
    go_on.set()
    assert (await first.read()).status == 200
    assert buffered(gate) == 0
    assert (await first.ask(post(body=body))).status == 200
    assert buffered(gate) == 0
    assert gate.gateway.statistics()["bodies_refused"] == 2


async def test_an_announced_body_counts_only_once_it_arrives(rig):
    gate = await rig(answer_json, limits={"max_buffered_body_bytes": 10_000})
    raw = post(body=b'{"model":"m","messages":[],"x":"%s"}' % (b"x" * 6_000))
    dawdling, other = await gate.connect(), await gate.connect()
    dawdling.writer.write(raw[:2_000])
    await eventually(lambda: buffered(gate) > 1_000)
    assert (await other.ask(raw)).status == 200
    dawdling.writer.write(raw[2_000:])
    assert (await dawdling.read()).status == 200


async def test_of_two_bodies_that_grow_past_the_limit_one_is_refused(rig):
    gate = await rig(answer_json, limits={"max_buffered_body_bytes": 10_000})
    raw = post(body=b'{"model":"m","messages":[],"x":"%s"}' % (b"x" * 8_000))
    clients = [await gate.connect() for _ in range(2)]
    for client in clients:
        client.writer.write(raw[:1_000])
        await client.writer.drain()
    await eventually(lambda: buffered(gate) > 1_500)
    for client in clients:
        client.writer.write(raw[1_000:6_000])
    reads = [asyncio.create_task(client.read()) for client in clients]
    done, waiting = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
    assert done.pop().result().status == 503
    for client in clients:
        client.writer.write(raw[6_000:])
    assert (await waiting.pop()).status == 200
    await eventually(lambda: buffered(gate) == 0)


async def test_an_incomplete_body_is_freed_with_its_connection(rig):
    gate = await rig(answer_json)
    gc.collect()
    gc.disable()
    try:
        before = resident_bytes()
        for _ in range(6):
            client = await gate.send(post(body=b"x" * 31_000_000)[:-1_000_000])
            await eventually(lambda: buffered(gate) >= 30_000_000)
            client.leave()
            await eventually(lambda: gate.gateway.statistics()["connections"] == 0)
            assert buffered(gate) == 0
        assert resident_bytes(garbage=True) - before < 93_000_000  # three of six
    finally:
        gc.enable()


def connections_in_memory():
    # not by weak references, because objects of compiled classes have none
    return {id(found): found for found in gc.get_objects() if type(found) is ClientConnection}


async def leaves_a_connection(gate, raw, earlier):
    """Send `raw` and leave. Return whether the connection stays in memory with the garbage collector off."""
    client = await gate.send(raw)
    await eventually(lambda: gate.gateway.statistics()["connections"] == 1)
    await delivered()
    client.leave()
    try:
        await eventually(lambda: connections_in_memory().keys() <= earlier.keys())
    except AssertionError:
        return True
    return False


async def test_a_closed_connection_leaves_no_cycle(rig):
    gate = await rig(answer_json)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n"
    gc.collect()
    gc.disable()
    try:
        earlier = connections_in_memory()  # of other tests
        for raw in (post(body=PLAIN), post()[:-3], head + chunk(b"{}"), b"GET / HT"):
            # A reference cycle keeps it every time. A slow machine may keep it once for another reason.
            stayed = [await leaves_a_connection(gate, raw, earlier)]
            while stayed[-1] and len(stayed) < 3:
                earlier = connections_in_memory()
                stayed.append(await leaves_a_connection(gate, raw, earlier))
            assert not stayed[-1], raw
    finally:
        gc.enable()


async def test_a_connection_above_max_connections_is_closed(rig):
    gate = await rig(answer_json, limits={"max_connections": 2})
    kept = [await gate.connect() for _ in range(2)]
    for client in kept:
        assert (await client.ask(get(b"/livez"))).status == 200
    assert await (await gate.connect()).closed() == b""
    kept[0].leave()
    await eventually(lambda: gate.gateway.statistics()["connections"] == 1)
    assert (await gate.ask(get(b"/livez"))).status == 200


async def test_draining_finishes_streams_and_closes_connections(rig):
    go_on = asyncio.Event()

    gate = await rig(stream_until(go_on))
    streaming, idle = await gate.connect(), await gate.connect()
    await idle.ask(get(b"/livez"))
    streaming.writer.write(post())
    await gate.workers[0].arrived.wait()
    closing = asyncio.create_task(gate.gateway.aclose(5))
    await eventually(lambda: not gate.gateway._parts.drain.accepts)
    reply = await idle.ask(get(b"/readyz"))
    assert (reply.status, reply.header(b"connection")) == (503, b"close")
    with pytest.raises(OSError):  # noqa: PT011
        await gate.connect()
    go_on.set()
    assert (await streaming.read()).body.endswith(DONE)
    reply = await streaming.ask(get(b"/livez"))  # the earlier response had promised to keep the connection
    assert (reply.status, reply.header(b"connection")) == (200, b"close")
    assert await streaming.closed() == b""
    await closing
    assert gate.gateway.statistics()["connections"] == 0


async def test_the_drain_deadline_ends_a_stream_with_an_error(rig):
    gate = await rig(saying(STREAM, chunk(event("a"))))
    client = await gate.send(post())
    await eventually(lambda: "first_token" in gate.recorded.events)
    await gate.gateway.aclose(0.05)
    reply = await client.read()  # to the last chunk: a clean end
    events = reply.body.split(b"\n\n")
    assert events[0] + b"\n\n" == event("a")
    assert msgspec.json.decode(events[1][6:])["error"]["code"] == "shutting_down"
    assert events[2:] == [b"data: [DONE]", b""]
    assert await client.closed() == b""
    assert gate.recorded.events == ["ticket", "first_token", "cancelled"]
    await asyncio.wait_for(gate.workers[0].requests[0].gone.wait(), WAIT_S)
    assert gate.gateway.statistics()["connections"] == 0


async def test_the_drain_deadline_answers_requests_without_a_response_503(rig):
    half = saying(json_head(100), b'{"half')
    gate = await rig(silent)
    waiting, uploading = await gate.connect(), await gate.connect()
    waiting.writer.write(post())
    uploading.writer.write(post()[:-5])
    await gate.workers[0].arrived.wait()
    await eventually(lambda: gate.gateway.statistics()["buffered_body_bytes"] > len(PLAIN))
    closing = asyncio.create_task(gate.gateway.aclose(0.05))
    for client in (waiting, uploading):
        reply = await client.read()
        assert (reply.status, reply.code, reply.header(b"connection")) == (503, "shutting_down", b"close")
        client.writer.close()
    await closing
    assert gate.recorded.events == ["ticket", "cancelled"]
    gate = await rig(half)
    client = await gate.send(post(body=PLAIN))
    await client.reader.readuntil(b'{"half')
    await gate.gateway.aclose(0.05)
    assert await client.closed() == b""  # no error can be written within the worker's Content-Length
    assert gate.recorded.events[-1] == "cancelled"


async def test_a_client_that_does_not_read_does_not_delay_the_close(rig):
    async def firehose(script):
        await script.say(STREAM)
        while not script.writer.is_closing():
            await script.say(chunk(b"data: " + b"x" * 65_000 + b"\n\n"))

    gate = await rig(firehose)
    client = await gate.connect(limit=65_536)
    client.writer.transport.pause_reading()
    client.writer.write(post())
    await eventually(lambda: any(not each.writable for each in gate.gateway._parts.drain.connections))
    await asyncio.wait_for(gate.gateway.aclose(0.05), WAIT_S)
    assert gate.gateway.statistics()["connections"] == 0
    assert gate.recorded.events[-1] == "cancelled"


async def test_after_many_streams_no_connection_and_no_load_is_left(rig):
    async def script(script):
        await script.say(STREAM)
        for index in range(100):
            await script.say(chunk(event(str(index))))
            await iterations(1)
        await script.say(chunk(usage_event()), chunk(DONE), END)

    gate = await rig(script, script)

    async def one(index):
        client = await gate.connect()
        if index % 5 == 0:
            client.writer.write(post())
            await client.reader.readuntil(b"\n\n")
            client.leave()
            return
        assert (await client.ask(post())).body.endswith(DONE)
        client.writer.close()

    await asyncio.gather(*[one(index) for index in range(100)])
    await eventually(lambda: gate.gateway.statistics()["connections"] == 0)
    assert gate.idle
    assert set(gate.counted("inter_token_latency_seconds")) == {("/v1/chat/completions", "default", "m")}
    assert any(each.startswith("progress") for each in gate.recorded.events)
