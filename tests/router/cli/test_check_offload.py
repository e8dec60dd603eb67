"""``warmroute check`` listens to a worker's KV events while it tries it."""

import asyncio
from contextlib import contextmanager

import pytest
import zmq

from backends.worker import KvEventSource
from router.cli.checks.examine_offload import listening, names_by_hash
from tests.support.kv_wire import Wire

WIRE = Wire()
TOKENS = list(range(8))
BY_HASH = WIRE.stored(TOKENS, medium="CPU", token_ids=[], block_size=0)


@contextmanager
def publisher():
    context = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.setsockopt(zmq.LINGER, 0)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    try:
        yield socket, KvEventSource(0, f"tcp://127.0.0.1:{port}", topic="kv")
    finally:
        socket.close()
        context.term()


@pytest.mark.parametrize(
    ("payloads", "found"),
    [
        ([WIRE.batch(WIRE.stored(TOKENS)), WIRE.batch(BY_HASH)], True),
        ([b"\xc1", WIRE.batch(BY_HASH)], True),
        ([WIRE.batch(WIRE.stored(TOKENS), WIRE.stored(TOKENS, medium="CPU"))], False),
        ([WIRE.batch(WIRE.stored(TOKENS, token_ids=[]))], False),
        ([], False),
    ],
)
async def test_offloaded_blocks_without_tokens_are_found(payloads, found):
    with publisher() as (socket, source), listening([source]) as sockets:
        assert await asyncio.to_thread(socket.recv) == b"\x01kv"
        for number, payload in enumerate(payloads):
            socket.send_multipart([b"kv", number.to_bytes(8, "big"), payload])
        assert await names_by_hash(sockets, 30.0 if found else 0.1) is found


async def test_an_unusable_address_is_left_out():
    with listening([KvEventSource(0, "nonsense://x")]) as sockets:
        assert not await names_by_hash(sockets, 0.0)
