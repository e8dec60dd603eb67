"""A worker's KV events as comings and goings of the engine model's own blocks."""

import asyncio
from array import array

import msgspec
import pytest
import zmq
import zmq.asyncio

from backends.engine.chain import BlockHasher
from backends.vllm.events import AllBlocksCleared, BlockRemoved, BlockStored
from backends.worker import KvEventSource
from loadtest.fidelity.events import EventLog, listening, settled

TOKENS = list(range(12))
BEGIN_S = 1_000.0


def frames(seq, ts, *events):
    return [b"kv-events", seq.to_bytes(8, "big"), msgspec.msgpack.encode([ts, events, 0])]


def stored(engine_hashes, first, parent=None):
    tokens = TOKENS[4 * first : 4 * (first + len(engine_hashes))]
    return BlockStored(engine_hashes, parent, tokens, 4)


def log_of(*messages):
    log = EventLog()
    for message in messages:
        log.add(message)
    return log


@pytest.fixture
def hashes():
    found = []
    BlockHasher(4, None, None).extend(found, array("I", TOKENS))
    return found


def test_blocks_have_the_models_hashes_and_modelled_times(hashes):
    log = log_of(
        frames(0, 1_000.5, stored([b"a", b"b"], 0)),
        frames(1, 1_002.0, stored([b"c"], 2, parent=b"b")),
        frames(2, 1_004.0, BlockRemoved([b"b"])),
    )
    history = log.history(BEGIN_S, time_scale=4.0)
    assert history.changes == {hashes[0]: [(0.125, 1)], hashes[1]: [(0.125, 1), (1.0, -1)], hashes[2]: [(0.5, 1)]}
    assert history.evictions == 1


def test_blocks_before_a_reset_are_forgotten(hashes):
    log = log_of(frames(0, 990.0, stored([1, 2], 0)), frames(1, 999.0, AllBlocksCleared(), stored([3], 0)))
    assert log.history(BEGIN_S, 1.0).changes == {hashes[0]: [(-1.0, 1)]}


def test_a_gap_in_the_sequence_counts_as_lost():
    assert log_of(frames(4, 0.0), frames(5, 0.0)).statistics() == {"messages": 2, "lost": 0}
    assert log_of(frames(4, 0.0), frames(7, 0.0)).lost == 2


async def test_a_publisher_is_heard_until_it_falls_silent():
    context = zmq.asyncio.Context()
    publisher = context.socket(zmq.PUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    source = KvEventSource(0, f"tcp://127.0.0.1:{port}", None, "kv-events", 0, 0)
    async with listening(source) as log:
        seq = 0
        while not log.messages:
            await publisher.send_multipart(frames(seq, BEGIN_S, stored([seq], 0)))
            seq += 1
            await asyncio.sleep(0)
        await settled(log)
        assert log.lost == 0
        assert 1 <= log.messages <= seq
    publisher.close(linger=0)
    context.term()
