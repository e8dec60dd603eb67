import asyncio
import json
import ssl
import tracemalloc

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from router.admin.http import connection as module
from router.admin.http import server as server_module
from router.admin.http.server import AdminServer
from router.config.model import Config, LimitsConfig, TimeoutsConfig
from router.process.listeners import admin_socket
from tests.support.waiting import eventually

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
LARGE = b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n"
LARGE_BYTES = 10_000_000  # more than the sockets' own buffers hold


async def _answer(request):
    await request.body()
    return PlainTextResponse("here")


async def _large(request):
    return PlainTextResponse("x" * LARGE_BYTES)


@pytest.fixture
async def serve():
    """A function that starts a server with such limits and timeouts."""
    made = []

    async def start(*, tls=None, timeouts=(), **limits):
        config = Config(admin_port=0, limits=LimitsConfig(**limits), timeouts=TimeoutsConfig(**dict(timeouts)))
        app = Starlette(routes=[Route("/", _answer, methods=["GET", "POST"]), Route("/large", _large)])
        made.append(AdminServer(app, admin_socket(config), config, tls))
        await made[-1].start()
        return made[-1]

    yield start
    for each in made:
        await each.aclose()


@pytest.fixture
async def connect():
    writers = []

    async def open_one(server, limit=65_536):
        reader, writer = await asyncio.open_connection(*server.listener.getsockname(), limit=limit)
        writers.append(writer)
        return reader, writer

    yield open_one
    for writer in writers:
        writer.transport.abort()


async def ask(connection, request=GET):
    reader, writer = connection
    writer.write(request)
    return await asyncio.wait_for(reader.readuntil(b"here"), 5)


async def rest(connection):
    try:
        return await asyncio.wait_for(connection[0].read(), 10)
    except ConnectionError:
        return b""


async def test_an_incomplete_head_is_closed_at_its_deadline(serve, connect):
    server = await serve(timeouts={"client_header_s": 0.3})
    halves = [await connect(server) for _ in range(5)]
    for _, writer in halves:
        writer.write(GET[:-2])
    for half in halves:
        answer = await rest(half)
        assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "request_timeout"
    silent = await connect(server)
    assert await rest(silent) == b""
    assert server.statistics()["open"] == 0


async def test_a_second_head_on_a_kept_connection_has_the_same_deadline(serve, connect):
    server = await serve(timeouts={"client_header_s": 0.3})
    kept = await connect(server)
    assert b"200 OK" in await ask(kept)
    kept[1].write(GET[:10])  # uvicorn's keep-alive timer stops at the first byte
    assert b" 408 " in await rest(kept)


async def test_a_body_has_a_deadline(serve, connect):
    server = await serve(timeouts={"client_body_s": 0.3})
    slow = await connect(server)
    slow[1].write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf")
    assert b" 408 " in await rest(slow)
    assert server.statistics()["open"] == 0


async def test_all_bodies_together_have_a_limit(serve, connect, monkeypatch):
    monkeypatch.setattr(module, "MOST_BODY_BYTES", 100_000)
    server = await serve()
    first, second = await connect(server), await connect(server)
    for _, writer in (first, second):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 60_000)
    done, _ = await asyncio.wait(
        [asyncio.create_task(rest(each)) for each in (first, second)], return_when=asyncio.FIRST_COMPLETED, timeout=5
    )
    assert [b" 503 " in each.result() for each in done] == [True]
    assert b"200 OK" in await ask(await connect(server))


async def test_a_head_without_an_end_is_refused(serve, connect):
    server = await serve(max_header_bytes=20_000)
    endless = await connect(server)
    endless[1].write(GET[:-2] + b"x-long: ")
    endless[1].write(b"a" * 20_000)
    assert b" 431 " in await rest(endless)


async def test_incomplete_heads_count_in_the_limit(serve, connect, monkeypatch):
    monkeypatch.setattr(server_module, "ADMIN_CONNECTIONS", 10)
    server = await serve()
    halves = [await connect(server) for _ in range(10)]
    for _, writer in halves:
        writer.write(GET[:-2])
    await eventually(lambda: server.statistics()["open"] == 10)
    for late in [await connect(server) for _ in range(30)]:
        assert await rest(late) == b""
    assert server.statistics()["open"] == 10 and server.statistics()["refused"] == 30
    halves[0][1].transport.abort()
    await eventually(lambda: server.statistics()["open"] == 9)
    assert b"200 OK" in await ask(await connect(server))


async def test_an_idle_connection_makes_room(serve, connect, monkeypatch):
    monkeypatch.setattr(server_module, "ADMIN_CONNECTIONS", 2)
    server = await serve()
    silent = [await connect(server) for _ in range(2)]
    assert b"200 OK" in await ask(await connect(server))
    assert await rest(silent[0]) == b""
    assert server.statistics()["evicted"] == 1


async def test_handshakes_count_in_the_limit(serve, connect, monkeypatch, tmp_path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    monkeypatch.setattr(server_module, "ADMIN_CONNECTIONS", 4)
    server = await serve(tls=context)
    silent = [await connect(server) for _ in range(12)]
    await eventually(lambda: server.statistics()["refused"] == 8)
    assert server.statistics()["opening"] == 4
    for each in silent[4:]:
        assert await rest(each) == b""


async def test_an_unread_answer_has_a_time_limit(serve, connect):
    server = await serve(timeouts={"stream_idle_s": 0.3})
    _, writer = await connect(server, limit=1_000)
    writer.write(LARGE * 5)
    await eventually(lambda: server.statistics()["open"] == 1)
    await eventually(lambda: server.statistics()["open"] == 0)


async def test_a_partly_read_last_answer_has_the_same_time_limit(serve, connect):
    server = await serve(timeouts={"stream_idle_s": 0.3})
    _, writer = await connect(server, limit=1_000)
    writer.write(LARGE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
    await eventually(lambda: server.statistics()["unsent_bytes"] > 0)
    (connection,) = server._server.server_state.connections
    assert connection.transport.is_closing()
    connection.resume_writing()  # as a TLS transport does once little is left
    await eventually(lambda: server.statistics()["open"] == 0, 3)


async def test_unread_answers_have_a_common_limit(serve, connect, monkeypatch):
    monkeypatch.setattr("router.admin.http.server.MOST_UNSENT_BYTES", 5 * LARGE_BYTES)
    server = await serve()
    clients = [await connect(server, limit=1_000) for _ in range(12)]
    for _, writer in clients:
        writer.write(LARGE)
    await eventually(lambda: server.statistics()["slow_readers_cut"] >= 7)
    assert server.statistics()["unsent_bytes"] <= 5 * LARGE_BYTES
    assert b"200 OK" in await ask(await connect(server))


async def test_requests_sent_ahead_cost_no_memory(serve, connect):
    server = await serve()
    reader, writer = await connect(server, limit=1_000)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    writer.write(GET * 50_000)
    await rest((reader, writer))  # the server closes the connection
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most - before < 10_000_000  # the client's own 1.35 MB several times among them
    writer.transport.abort()
