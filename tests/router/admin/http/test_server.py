import asyncio
import socket

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from router.admin.http.server import AdminServer
from router.config.model import Config
from router.process.listeners import admin_socket

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
async def server():
    go_on, arrived = asyncio.Event(), asyncio.Event()
    go_on.set()

    async def answer(request):
        arrived.set()
        await go_on.wait()
        return PlainTextResponse("here")

    made = AdminServer(Starlette(routes=[Route("/", answer)]), admin_socket(Config(admin_port=0)), Config())
    made.go_on, made.arrived = go_on, arrived
    await made.start()
    yield made
    go_on.set()
    await made.aclose()


async def call(reader, writer):
    writer.write(GET)
    return await head(reader)


async def head(reader):
    return await asyncio.wait_for(reader.readuntil(b"here"), 5)


async def connect(server):
    return await asyncio.open_connection(*server.listener.getsockname())


async def test_a_call_in_progress_finishes_at_shutdown(server):
    reader, writer = await connect(server)
    server.go_on.clear()
    writer.write(GET)
    await asyncio.wait_for(server.arrived.wait(), 5)
    closing = asyncio.create_task(server.aclose())
    await asyncio.sleep(0)  # it begins to close
    server.go_on.set()
    assert b"200 OK" in await head(reader)
    await asyncio.wait_for(closing, 5)
    assert await reader.read() == b""
    writer.close()


async def test_kept_connections_get_connection_close(server):
    reader, writer = await connect(server)
    assert b"connection: close" not in await call(reader, writer)
    await server.stop_accepting(leave_queue=False)
    assert b"connection: close" in await call(reader, writer)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_waiting_connections_are_answered_at_shutdown(server):
    waiting = socket.create_connection(server.listener.getsockname())
    waiting.sendall(GET)
    await server.aclose()
    waiting.settimeout(5)
    assert b"200 OK" in waiting.recv(4096)
    waiting.close()


async def test_waiting_connections_are_left_to_another_process(server):
    with server.listener.dup() as other:
        waiting = socket.create_connection(other.getsockname())
        await server.stop_accepting(leave_queue=True)
        other.accept()[0].close()
        waiting.close()


async def test_a_stopped_server_can_accept_again(server):
    kept, address = server.listener.dup(), server.address
    for _ in range(2):
        await server.stop_accepting(leave_queue=True)
        waiting = socket.create_connection(kept.getsockname())
        waiting.sendall(GET)
        again = kept.dup()
        server.accept_again(kept)
        kept = again
        waiting.settimeout(5)
        assert b"200 OK" in await asyncio.to_thread(waiting.recv, 4096)
        waiting.close()
        reader, writer = await connect(server)
        assert b"connection: close" not in await call(reader, writer)
        writer.close()
        assert server.address == address
    kept.close()


async def test_the_address_is_that_of_the_listener(server):
    assert server.address == "{}:{}".format(*server.listener.getsockname())
    listener = socket.create_server(("::1", 0), family=socket.AF_INET6) if socket.has_ipv6 else None
    if listener is not None:
        assert AdminServer(Starlette(), listener, Config()).address.startswith("[::1]:")
        listener.close()
