"""A drain, and its effect on connections that wait to be accepted, are idle, or carry a request."""

import asyncio
import os
import socket

import pytest

from router.gateway.listen.drain import close_listeners
from router.process.children.accept_balancer import LeastConnections
from router.process.shared_memory.ledger import Ledger, make_table
from tests.support.answers import answer_json, silent, stream_until
from tests.support.raw_client import PLAIN, get, post
from tests.support.waiting import WAIT_S, delivered, eventually, iterations

LATER = {"upstream_idle_s": 4.0, "drain_idle_s": 5.0}


def reached(listener, data=b""):
    """Connect a client that the kernel has accepted and the gateway has not: the event loop has not run since."""
    client = socket.socket(listener.family, socket.SOCK_STREAM)
    client.connect(listener.getsockname())
    client.sendall(data)
    client.setblocking(False)
    return client


async def everything(client):
    loop, data = asyncio.get_running_loop(), b""
    async with asyncio.timeout(5):
        while piece := await loop.sock_recv(client, 65_536):
            data += piece
    client.close()
    return data


async def test_a_drain_accepts_and_tells_clients_to_close(rig):
    gate = await rig(answer_json)
    idle = await gate.connect()
    assert (await idle.ask(get(b"/readyz"))).status == 200
    gate.gateway.drain()
    reply = await idle.ask(post(body=PLAIN))
    assert (reply.status, reply.header(b"connection")) == (200, b"close")
    assert await idle.closed() == b""
    for path in (b"/health", b"/readyz", b"/ping"):
        reply = await gate.ask(get(path))
        assert (reply.status, reply.header(b"connection")) == (503, b"close")
    reply = await gate.ask(post(body=PLAIN))
    assert (reply.status, reply.header(b"connection")) == (200, b"close")


async def test_a_kept_alive_connection_gets_one_more_answer_during_a_drain(rig):
    go_on = asyncio.Event()

    gate = await rig(stream_until(go_on), timeouts=LATER)
    client = await gate.send(post())
    await eventually(lambda: "first_token" in gate.recorded.events)
    closing = asyncio.create_task(gate.gateway.aclose(5))
    await eventually(lambda: not gate.gateway._parts.drain.accepts)
    go_on.set()
    assert (await client.read()).header(b"connection") is None
    reply = await client.ask(post())
    assert (reply.status, reply.header(b"connection")) == (200, b"close")
    assert await client.closed() == b""
    await asyncio.wait_for(closing, WAIT_S)


async def test_idle_connections_are_closed_after_drain_idle_s(rig):
    gate = await rig(answer_json, timeouts={"drain_idle_s": 0.3})
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    idle, unused = await gate.connect(), await gate.connect()
    await idle.ask(get(b"/livez"))
    closing = asyncio.create_task(gate.gateway.aclose(5))
    assert await idle.closed() == b""
    assert await unused.closed() == b""
    assert loop.time() - began_s >= 0.3
    await asyncio.wait_for(closing, WAIT_S)


def sweep(gateway, connection):
    connection.deadline_s = 0.0
    gateway._timer.cancel()
    gateway._sweep()


async def test_a_request_that_waits_unread_when_an_idle_connection_expires_is_answered(rig):
    gate = await rig(answer_json)
    client = reached(*gate.gateway.listeners)
    await eventually(lambda: gate.gateway._parts.drain.connections)
    (connection,) = gate.gateway._parts.drain.connections
    client.send(get(b"/livez"))  # only the kernel has it: the event loop has not run since
    sweep(gate.gateway, connection)
    async with asyncio.timeout(5):
        assert (await asyncio.get_running_loop().sock_recv(client, 65_536)).startswith(b"HTTP/1.1 200 ")
    sweep(gate.gateway, connection)
    assert await everything(client) == b""


async def test_connections_in_the_accept_queue_are_answered(rig):
    gate = await rig(answer_json)
    (listener,) = gate.gateway.listeners
    address = listener.getsockname()
    gate.gateway.drain()
    queued = [reached(listener, get(b"/livez")) for _ in range(20)]
    await gate.gateway.stop_accepting(settle_s=0)
    for client in queued:
        assert (await everything(client)).startswith(b"HTTP/1.1 200 ")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


async def test_connections_in_the_queue_of_a_unix_socket_are_answered(rig, tmp_path):
    gate = await rig(answer_json, uds=str(tmp_path / "public.sock"))
    gate.gateway.drain()
    queued = [reached(*gate.gateway.listeners, get(b"/livez")) for _ in range(20)]
    await gate.gateway.stop_accepting()
    for client in queued:
        assert (await everything(client)).startswith(b"HTTP/1.1 200 ")


async def test_queued_connections_are_left_to_another_holder_of_the_socket(rig):
    gate = await rig(answer_json)
    (listener,) = gate.gateway.listeners
    with listener.dup() as other:
        queued = reached(listener)
        await gate.gateway.stop_accepting(leave_queue=True)
        accepted, peer = other.accept()
        assert peer == queued.getsockname()
        late = reached(other)
        other.accept()[0].close()
        late.close()
        accepted.close()
        queued.close()


@pytest.mark.parametrize("shared", [False, True])
async def test_a_client_accepted_in_the_iteration_of_the_close_is_served(rig, shared):
    gate = await rig(answer_json)
    await gate.gateway.aclose(0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        table = make_table(1)
        accept_order = LeastConnections(Ledger(table, 1, 0), 1, 0) if shared else None
        os.close(table)
        await gate.gateway.start([other.dup()], accept_order=accept_order)
        parts, request = gate.gateway._parts, post(body=PLAIN)
        client = reached(other, request[:-1])

        async def ask():
            await eventually(lambda: not parts.drain.accepts)
            client.send(request[-1:])
            return await everything(client)

        asking = asyncio.create_task(ask())
        while not parts.drain.places.opening:  # the one iteration between an accept and its first callback
            await iterations(1)
        assert not parts.drain.connections
        async with asyncio.timeout(10):
            await gate.gateway.aclose(20, leave_queue=True)  # runs to its first wait in this iteration
        assert (await asking).startswith(b"HTTP/1.1 200 ")


async def test_no_handshake_begins_once_listeners_close():
    loop = asyncio.get_running_loop()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    address = listener.getsockname()
    server = await loop.create_server(asyncio.Protocol, sock=listener)
    closing = asyncio.create_task(close_listeners([server], [listener], lambda client: None, leave_queue=False))
    await iterations(1)
    late = socket.socket()
    late.setblocking(False)
    connecting = asyncio.create_task(loop.sock_connect(late, address))
    await delivered()
    assert not connecting.done()  # the kernel drops the SYN; a closed port would refuse it
    connecting.cancel()
    await asyncio.gather(connecting, return_exceptions=True)
    late.close()
    await closing


async def test_passed_listeners_are_served_and_their_queue_left_alone(rig):
    gate = await rig(answer_json)
    await gate.gateway.aclose(0)
    with socket.create_server(("127.0.0.1", 0)) as passed:
        passed.setblocking(False)
        addresses = await gate.gateway.start([passed.dup()])
        assert addresses == ["{}:{}".format(*passed.getsockname())]
        gate.address = addresses[0]
        assert (await gate.ask(get(b"/livez"))).status == 200
        await gate.gateway.aclose(0)
        reached(passed).close()  # it still listens, for the caller that passed it
        passed.accept()[0].close()


async def test_requests_at_each_worker_are_counted(rig):
    gate = await rig(silent)
    client = await gate.send(post(body=PLAIN))
    await gate.workers[0].arrived.wait()
    assert gate.gateway.in_flight() == {gate.workers[0].id: 1}
    client.leave()
    await eventually(lambda: gate.gateway.in_flight() == {})


async def test_a_gateway_that_had_stopped_accepting_serves_again(rig):
    gate = await rig(answer_json, timeouts={"drain_idle_s": 0.3})
    kept = [listener.dup() for listener in gate.gateway.listeners]
    idle = await gate.connect()
    assert (await idle.ask(get(b"/readyz"))).status == 200
    gate.gateway.drain()
    await gate.gateway.stop_accepting(leave_queue=True)
    waiting = reached(kept[0], get(b"/readyz"))
    await gate.gateway.accept_again(kept)
    assert gate.gateway.listeners == tuple(kept)
    answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(waiting, 65_536), 5)
    assert answer.startswith(b"HTTP/1.1 200")
    waiting.close()
    parts = gate.gateway._parts
    assert (
        min(each.deadline_s for each in parts.drain.connections) > parts.loop.time() + 1
    )  # drain_idle_s no longer applies
    reply = await idle.ask(post(body=PLAIN))
    assert (reply.status, reply.header(b"connection")) == (200, None)
    reply = await gate.ask(post(body=PLAIN))
    assert (reply.status, reply.header(b"connection")) == (200, None)
    await asyncio.wait_for(gate.gateway.aclose(2 * WAIT_S), WAIT_S)  # idle connections close after drain_idle_s again
