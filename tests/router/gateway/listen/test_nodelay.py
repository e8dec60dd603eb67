"""Nagle's algorithm is off on both sides. Otherwise a small write after an unacknowledged one waits 40 ms."""

import socket


def nodelay(transport):
    return transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_nodelay_is_set_on_both_sides(rig, kit):
    gate = await rig(kit.answer_json)
    client = await gate.connect()
    assert (await client.ask(kit.post())).status == 200
    parts = gate.gateway._parts
    (accepted,), (dialled,) = parts.drain.connections, parts.pools._open
    assert nodelay(accepted._transport)
    assert nodelay(dialled._transport)
