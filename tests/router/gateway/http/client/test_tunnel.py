import asyncio

from tests.support.answers import answer_json
from tests.support.raw_client import get
from tests.support.waiting import WAIT_S, eventually, settled

UPGRADE = (
    b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a2V5\r\nSec-WebSocket-Version: 13\r\n"
)
SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n"
)


async def echo(script):
    await script.say(SWITCH + b"welcome")
    while data := await script.reader.read(65536):
        await script.say(data)
    script.seen.gone.set()


async def test_a_tunnel_carries_bytes_until_one_side_closes(rig):
    gate = await rig(echo)
    client = await gate.send(get(b"/v1/realtime?model=m&x=y", UPGRADE) + b"early")
    reply = await client.read()
    assert reply.status == 101
    assert reply.header(b"sec-websocket-accept") == b"x"
    assert reply.header(b"upgrade") == b"websocket"
    assert await client.reader.readexactly(12) == b"welcomeearly"
    seen = gate.workers[0].requests[0]
    assert seen.lines[0] == b"GET /v1/realtime?model=m&x=y HTTP/1.1"
    assert seen.header(b"upgrade") == b"websocket"
    assert seen.header(b"connection") == b"keep-alive, Upgrade"
    assert gate.recorded.requests[0].model == "m"
    for size in (1, 100_000):
        client.writer.write(b"\x81" * size)
        assert await client.reader.readexactly(size) == b"\x81" * size
    client.leave()
    await asyncio.wait_for(seen.gone.wait(), WAIT_S)
    assert gate.recorded.events == ["ticket", "finished 200"]
    assert gate.idle


async def test_a_tunnel_closes_the_client_when_the_worker_closes(rig):
    async def bye(script):
        await script.say(SWITCH + b"bye")
        script.writer.close()

    gate = await rig(bye)
    client = await gate.connect()
    await client.ask(get(b"/v1/realtime", UPGRADE))
    assert await client.closed() == b"bye"
    assert gate.idle


async def test_a_refused_upgrade_is_an_ordinary_response(rig):
    async def refuse(script):
        await answer_json(script, b"403 Forbidden", b"{}")

    gate = await rig(refuse)
    client = await gate.connect()
    reply = await client.ask(get(b"/v1/realtime?model=m", UPGRADE))
    assert (reply.status, reply.body) == (403, b"{}")
    assert (await client.ask(get(b"/livez"))).status == 200


async def test_a_request_without_upgrade_is_ordinary(rig):
    gate = await rig(answer_json)
    assert (await gate.ask(get(b"/v1/realtime?model=m"))).status == 200
    assert gate.workers[0].requests[0].header(b"upgrade") is None


async def test_a_tunnel_has_back_pressure_both_ways(rig):
    read = asyncio.Event()

    async def stubborn(script):
        await script.say(SWITCH)
        await read.wait()
        total = 0
        while total < 50_000_000:
            total += len(await script.reader.read(1 << 20))
        await script.say(b"done")

    gate = await rig(stubborn)
    client = await gate.connect()
    await client.ask(get(b"/v1/realtime?model=m", UPGRADE))
    client.writer.write(b"x" * 50_000_000)
    unsent_bytes = await settled(client.writer.transport.get_write_buffer_size)
    assert unsent_bytes > 20_000_000  # most bytes still wait in the client
    read.set()
    assert await asyncio.wait_for(client.reader.readexactly(4), 10) == b"done"


async def test_bytes_sent_before_the_switch_stop_counting_as_body_bytes(rig):
    agree = asyncio.Event()

    async def late(script):
        await agree.wait()
        await echo(script)

    gate = await rig(late)
    client = await gate.send(get(b"/v1/realtime?model=m", UPGRADE) + b"x" * 200_000)
    await eventually(lambda: gate.gateway.statistics()["buffered_body_bytes"] > 65_536)
    agree.set()
    assert (await client.read()).status == 101
    assert await client.reader.readexactly(200_007) == b"welcome" + b"x" * 200_000
    assert gate.gateway.statistics()["buffered_body_bytes"] == 0


async def test_a_tunnel_is_closed_when_idle_and_not_at_the_total_limit(rig):
    """The limit of a whole request does not apply."""
    gate = await rig(echo, timeouts={"stream_idle_s": 0.3, "total_s": 0.1})
    client = await gate.connect()
    await client.ask(get(b"/v1/realtime?model=m", UPGRADE))
    assert await client.reader.readexactly(7) == b"welcome"
    end_s = gate.loop.time() + 0.3
    while gate.loop.time() < end_s:
        client.writer.write(b"ping")
        assert await client.reader.readexactly(4) == b"ping"
    assert await client.closed() == b""
