import asyncio

import pytest
import zmq
import zmq.asyncio

from backends.vllm import event_publisher
from backends.vllm.event_publisher import EventBuffer, EventSockets
from backends.vllm.events import ReplayEnd, parse_replay, replay_request


def filled(count, size=10, **limits):
    buffer = EventBuffer(**limits)
    for seq in range(count):
        buffer.append(seq, b"x" * size)
    return buffer


def numbers(batches):
    return [seq for seq, _ in batches]


def test_a_buffer_keeps_the_last_batches():
    buffer = filled(1_000, max_batches=3)
    assert len(buffer) == 3 and numbers(buffer.since(0, 10)) == [997, 998, 999]


def test_batches_since_a_number_skip_gaps_and_stop_at_the_most():
    buffer = EventBuffer()
    for seq in (2, 3, 7, 9):
        buffer.append(seq, b"")
    assert numbers(buffer.since(0, 2)) == [2, 3]
    assert numbers(buffer.since(4, 9)) == [7, 9]
    assert numbers(buffer.since(10, 9)) == []


@pytest.fixture
async def context():
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def opened():
    open_sockets = []

    def begin(buffer, **options):
        sockets = EventSockets("kv", buffer, 1_000, **options)
        endpoints = sockets.open("127.0.0.1", 0, 0)
        open_sockets.append(sockets)
        return sockets, endpoints

    yield begin
    for sockets in open_sockets:
        sockets.close()


async def asked(context, endpoint, *requests):
    socket = context.socket(zmq.DEALER)
    socket.connect(endpoint)
    for frames in requests:
        await socket.send_multipart(frames)
    return socket


async def replies(socket):
    found = []
    while not isinstance(batch := parse_replay(await asyncio.wait_for(socket.recv_multipart(), 5)), ReplayEnd):
        found.append(batch.seq)
    return found


async def test_a_replay_brings_all_kept_batches_in_order(context, opened):
    sockets, (_, replay) = opened(filled(1_000))
    socket = await asked(context, replay, replay_request(100))
    assert await replies(socket) == list(range(100, 1_000))
    assert sockets.statistics() == {"replays": 1, "replayed_batches": 900}


async def test_a_replay_longer_than_the_queue_waits_for_its_receiver(context, opened, monkeypatch):
    monkeypatch.setattr(event_publisher, "REPLAY_HWM", 2)
    _, (_, replay) = opened(filled(5_000, size=20_000))
    socket = context.socket(zmq.DEALER)
    socket.set_hwm(2)
    socket.connect(replay)
    await socket.send_multipart(replay_request(0))
    await asyncio.sleep(0.1)  # the queues and the kernel's buffers fill
    assert await replies(socket) == list(range(5_000))


async def test_a_receiver_that_leaves_or_takes_nothing_ends_its_replay(context, opened, monkeypatch):
    monkeypatch.setattr(event_publisher, "REPLAY_HWM", 2)
    monkeypatch.setattr(event_publisher, "STALLED_S", 0.05)
    sockets, (_, replay) = opened(filled(5_000, size=20_000))
    stalled = context.socket(zmq.DEALER)
    stalled.set_hwm(1)
    stalled.connect(replay)
    await stalled.send_multipart(replay_request(0))
    gone = await asked(context, replay, replay_request(0))
    await gone.recv_multipart()
    gone.close(linger=0)
    for _ in range(200):
        await asyncio.sleep(0.02)
        if sockets.statistics()["replays"] == 2 and not sockets._replies:
            break
    assert not sockets._replies
    assert await replies(await asked(context, replay, replay_request(4_990))) == list(range(4_990, 5_000))


async def test_requests_that_are_none_get_no_answer(context, opened):
    sockets, (_, replay) = opened(filled(3))
    socket = await asked(context, replay, [b"", b"short"], [b"x"], [b"", b"1" * 8, b"more"], replay_request(2))
    assert await replies(socket) == [2]
    assert sockets.statistics()["replays"] == 1


async def test_ports_can_be_bound_again_at_once(opened):
    sockets, endpoints = opened(filled(1))
    ports = [int(endpoint.rpartition(":")[2]) for endpoint in endpoints]
    sockets.close()
    assert sockets.open("127.0.0.1", *ports) == endpoints


async def test_a_port_in_use_is_named(opened):
    _, (endpoint, _) = opened(filled(1))
    port = int(endpoint.rpartition(":")[2])
    with pytest.raises(OSError, match=f"KV events cannot listen on 127.0.0.1:{port}"):
        EventSockets("kv", EventBuffer(), 10).open("127.0.0.1", port, 0)
