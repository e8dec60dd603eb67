import asyncio

import msgspec
import pytest
import zmq
import zmq.asyncio

from backends.engine.events import CacheCleared
from backends.simulated.publisher import EventPublisher
from backends.vllm.events import ReplayEnd, parse_replay, replay_request

COMPLETIONS = "/v1/completions"
END = b"\xff" * 8


@pytest.fixture
def context():
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


async def subscribe(context, client):
    """Return a SUB socket whose subscription has reached the publisher."""
    socket = context.socket(zmq.SUB)
    socket.connect(client.running.bound.kv_events_endpoint)
    socket.subscribe(b"kv-")
    for start in range(400, 4000, 16):
        await ask(client, list(range(start, start + 17)))
        if await socket.poll(50):
            break
    while await socket.poll(50):
        await socket.recv_multipart()
    return socket


async def ask(client, ids, **fields):
    answer = await client.post(COMPLETIONS, json={"prompt": ids, "max_tokens": 1, **fields})
    assert answer.status_code == 200
    return answer.json()


async def receive(socket):
    return await asyncio.wait_for(socket.recv_multipart(), 5)


async def replay(context, client, start, batches=None):
    socket = context.socket(zmq.DEALER)
    socket.connect(client.running.bound.kv_events_replay_endpoint)
    await socket.send_multipart([b"", start.to_bytes(8, "big")])
    replies = []
    while True:
        frames = await receive(socket)
        assert len(frames) == 4
        assert frames[0] == b""
        if frames[2] == END:
            assert frames == [b"", b"", END, b""]
            return replies
        replies.append((frames[1], int.from_bytes(frames[2], "big"), frames[3]))


async def test_stored_blocks_on_the_wire(worker_with, context):
    async with worker_with(lora_adapters=("style",)) as client:
        socket = await subscribe(context, client)
        await ask(client, list(range(40)))
        topic, seq, payload = await receive(socket)
        assert (topic, len(seq)) == (b"kv-events", 8)
        ts, events, rank = msgspec.msgpack.decode(payload)
        assert (rank, type(ts)) == (0, float)
        (event,) = events
        assert event["type"] == "BlockStored"
        assert event["token_ids"] == list(range(32))
        assert len(event["block_hashes"]) == 2
        assert all(isinstance(value, int) and 0 <= value < 2**64 for value in event["block_hashes"])
        assert (event["block_size"], event["parent_block_hash"], event["medium"]) == (16, None, "GPU")
        assert (event["lora_id"], event["lora_name"], event["group_idx"]) == (None, None, 0)
        assert "extra_keys" not in event

        await ask(client, list(range(64)), model="style", cache_salt="salt")
        _, next_seq, payload = await receive(socket)
        assert int.from_bytes(next_seq, "big") == int.from_bytes(seq, "big") + 1
        (event,) = msgspec.msgpack.decode(payload)[1]
        assert event["lora_name"] == "style"
        assert event["extra_keys"] == [["style", "salt"], ["style"], ["style"], ["style"]]

        await ask(client, list(range(64)))
        _, _, payload = await receive(socket)
        (event,) = msgspec.msgpack.decode(payload)[1]
        assert event["token_ids"] == list(range(32, 64))
        assert event["parent_block_hash"] is not None


async def test_reused_blocks_are_announced_again_on_request(worker_with, context):
    async with worker_with() as client:
        socket = await subscribe(context, client)
        await ask(client, list(range(40)))
        (first,) = msgspec.msgpack.decode((await receive(socket))[2])[1]
        xargs = {"kv_cache_report_mode": "full", "other": [1, "x"]}
        answer = await ask(client, list(range(64)), vllm_xargs=xargs)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 32
        again, new = msgspec.msgpack.decode((await receive(socket))[2])[1]
        assert again == first and new["parent_block_hash"] == first["block_hashes"][-1]
        await ask(client, list(range(70)), vllm_xargs={"kv_cache_report_mode": "incremental"})
        assert not await socket.poll(50)
        answer = await client.post(COMPLETIONS, json={"prompt": [1, 2], "vllm_xargs": {"a": {"b": 1}}})
        assert answer.status_code == 400


async def test_removed_and_cleared_on_the_wire(worker_with, context):
    async with worker_with(num_blocks=9, dev_mode=True) as client:
        socket = await subscribe(context, client)
        kinds = set()
        for start in range(0, 600, 100):
            await ask(client, list(range(start, start + 70)))
        while await socket.poll(50):
            for event in msgspec.msgpack.decode((await socket.recv_multipart())[2])[1]:
                kinds.add(event["type"])
                if event["type"] == "BlockRemoved":
                    assert event["block_hashes"]
                    assert (event["medium"], event["group_idx"]) == ("GPU", 0)
        assert kinds == {"BlockStored", "BlockRemoved"}
        await client.post("/reset_prefix_cache")
        await ask(client, [5] * 17)
        events = msgspec.msgpack.decode((await receive(socket))[2])[1]
        assert events[0] == {"type": "AllBlocksCleared"}


async def test_generated_tokens_are_published(worker_with, context):
    async with worker_with() as client:
        socket = await subscribe(context, client)
        answer = await ask(client, list(range(16)), max_tokens=17, return_token_ids=True)
        await receive(socket)
        (event,) = msgspec.msgpack.decode((await receive(socket))[2])[1]
        assert event["token_ids"] == answer["choices"][0]["token_ids"][:16]


async def test_events_leave_before_the_answer_that_caused_them(worker_with):
    async with worker_with() as client:
        await ask(client, list(range(40)))
        assert client.worker.publisher.statistics()["published_batches"] == 1


async def test_a_replay_sends_the_batches_from_a_number_on(worker_with, context):
    async with worker_with() as client:
        for start in range(0, 1000, 100):
            await ask(client, list(range(start, start + 17)))
        replies = await replay(context, client, 4)
        assert [seq for _, seq, _ in replies] == [4, 5, 6, 7, 8, 9]
        assert {topic for topic, _, _ in replies} == {b"kv-events"}
        tokens = [msgspec.msgpack.decode(payload)[1][0]["token_ids"][0] for _, _, payload in replies]
        assert tokens == [400, 500, 600, 700, 800, 900]
        assert await replay(context, client, 10) == []
        assert client.worker.publisher.statistics()["replays"] == 2


@pytest.fixture
async def publisher():
    one = EventPublisher("kv", 2_000, 10)
    one.endpoints = one.start("127.0.0.1", 0, 0)
    for _ in range(3_000):
        one.publish([CacheCleared()], 0.0)
    yield one
    one.close()


async def test_a_replay_has_all_that_is_kept_and_what_is_no_request_gets_none(publisher, context):
    socket = context.socket(zmq.DEALER)
    socket.connect(publisher.endpoints[1])
    for frames in ([b"", b"short"], [b"x"], [b"", b"1" * 8, b"more"], replay_request(100)):
        await socket.send_multipart(frames)
    found = []
    while not isinstance(batch := parse_replay(await receive(socket)), ReplayEnd):
        found.append(batch.seq)
    assert found == list(range(1_000, 3_000))
    assert publisher.statistics() == {"published_batches": 3_000, "buffered_batches": 2_000, "replays": 1}


async def test_a_port_in_use_is_named(publisher):
    port = int(publisher.endpoints[0].rpartition(":")[2])
    with pytest.raises(OSError, match=f"KV events cannot listen on 127.0.0.1:{port}"):
        EventPublisher("kv", 1, 10).start("127.0.0.1", port, 0)
