"""The TCP options of both sides.

Nagle's algorithm is off; otherwise a small write after an unacknowledged one waits 40 ms. Keep-alive is on, so that no
NAT forgets a connection that is silent for minutes.
"""

import socket

import pytest

from backends.keep_alive import IDLE_S, INTERVAL_S, PROBES, keep_alive
from backends.vllm.control import WorkerClient
from backends.worker import parse_endpoint
from tests.support.answers import answer_json
from tests.support.raw_client import post
from tests.support.scripted_worker import ScriptedWorker


def option(transport, level, name):
    return transport.get_extra_info("socket").getsockopt(level, name)


def keep_alive_of(transport):
    timing = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    return (
        bool(option(transport, socket.SOL_SOCKET, socket.SO_KEEPALIVE)),
        *(option(transport, socket.IPPROTO_TCP, each) for each in timing),
    )


@pytest.fixture
async def both_sides(rig):
    gate = await rig(answer_json)
    client = await gate.connect()
    assert (await client.ask(post())).status == 200
    parts = gate.gateway._parts
    (accepted,), (dialled,) = parts.drain.connections, parts.pools._open
    return accepted.output._transport, dialled._transport


async def test_nodelay_is_set_on_both_sides(both_sides):
    assert all(option(side, socket.IPPROTO_TCP, socket.TCP_NODELAY) for side in both_sides)


async def test_keep_alive_is_set_on_both_sides(both_sides):
    assert [keep_alive_of(side) for side in both_sides] == 2 * [(True, IDLE_S, INTERVAL_S, PROBES)]
    assert IDLE_S + INTERVAL_S < 350, "the least time after which a widespread balancer forgets a connection"


async def test_keep_alive_is_set_on_control_connections():
    worker = await ScriptedWorker(answer_json).start()
    try:
        endpoint = parse_endpoint(f"http://{worker.id}")
        async with WorkerClient() as client:
            connection = await client._lane(endpoint)._connect()
            assert keep_alive_of(connection._transport) == (True, IDLE_S, INTERVAL_S, PROBES)
            connection.close()
    finally:
        await worker.stop()


def test_a_unix_socket_has_no_keep_alive():
    with socket.socket(socket.AF_UNIX) as plain:
        keep_alive(plain)
        assert not plain.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
