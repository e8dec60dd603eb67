"""Nagle's algorithm is off on both sides. Otherwise a small write after an unacknowledged one waits 40 ms."""

import socket

from tests.support.answers import answer_json
from tests.support.raw_client import post


def nodelay(transport):
    return transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_nodelay_is_set_on_both_sides(rig):
    gate = await rig(answer_json)
    client = await gate.connect()
    assert (await client.ask(post())).status == 200
    parts = gate.gateway._parts
    (accepted,), (dialled,) = parts.drain.connections, parts.pools._open
    assert nodelay(accepted.output._transport)
    assert nodelay(dialled._transport)
