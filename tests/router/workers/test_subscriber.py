import itertools
import threading
import time
from contextlib import contextmanager

import msgspec
import pytest
import zmq

from backends.keep_alive import IDLE_S, INTERVAL_S, PROBES
from backends.worker import KvEventSource
from policies.view import Residency
from router.workers import event_replay as replay
from router.workers import subscriber as subscriber_module
from router.workers.subscriber import Subscriber
from tests.support.memory import peak_bytes, start_peak
from tests.support.waiting import eventually

FIRST, SECOND, THIRD = list(range(100, 108)), list(range(200, 208)), list(range(300, 308))


@pytest.fixture
async def publisher(wire, context):
    return wire.Publisher(context)


@contextmanager
def following(publisher, context, pump, residency, metrics, *, replay=True, replay_idle_s=5.0):
    source = KvEventSource(0, publisher.endpoint, publisher.replay_endpoint if replay else None, "kv")
    lost = []
    subscriber = Subscriber(
        context,
        pump,
        residency,
        metrics.event_replays,
        slot=0,
        worker="w:1",
        source=source,
        on_lost=lambda: lost.append(1),
        replay_idle_s=replay_idle_s,
    )
    subscriber.start()
    subscriber.lost = lost
    try:
        yield subscriber
    finally:
        subscriber.close()
        publisher.close()


def held(wire, residency, tokens):
    return residency.match(wire.prompt_of([*tokens, 1]), [0])[0].tokens


def trusted(residency):
    return residency.slot(0).state().residency is Residency.EXACT


def keep_alive_of(socket):
    options = (zmq.TCP_KEEPALIVE, zmq.TCP_KEEPALIVE_IDLE, zmq.TCP_KEEPALIVE_INTVL, zmq.TCP_KEEPALIVE_CNT)
    return tuple(socket.getsockopt(option) for option in options)


async def test_keep_alive_is_set_on_the_event_sockets(publisher, context, pump, residency, metrics):
    with following(publisher, context, pump, residency, metrics) as subscriber:
        assert keep_alive_of(subscriber._socket) == (1, IDLE_S, INTERVAL_S, PROBES)
        subscriber._ask(0)
        assert keep_alive_of(subscriber._replay._socket) == (1, IDLE_S, INTERVAL_S, PROBES)


async def settled(wire, residency, tokens, expected=8):
    await eventually(lambda: held(wire, residency, tokens) == expected)
    await eventually(lambda: trusted(residency))


@pytest.mark.parametrize("modern", [True, False])
async def test_earlier_events_are_replayed(wire, context, pump, residency, metrics, modern):
    publisher = wire.Publisher(context, modern=modern)
    publisher.publish(wire.stored(FIRST, 1))
    with following(publisher, context, pump, residency, metrics) as subscriber:
        await settled(wire, residency, FIRST)
        publisher.publish(wire.stored(SECOND, 11))
        await settled(wire, residency, SECOND)
        assert metrics.replays == ["filled"] and publisher.asked == [0]
        statistics = subscriber.statistics()
        assert statistics["linked"] and statistics["batches"] == 1 and statistics["lag_s"] < 5


async def test_a_dropped_batch_is_replayed_and_the_view_exact(wire, publisher, context, pump, residency, metrics):
    with following(publisher, context, pump, residency, metrics):
        await eventually(lambda: trusted(residency))
        publisher.publish(wire.stored(FIRST, 1))
        await settled(wire, residency, FIRST)
        publisher.publish(wire.stored(SECOND, 11), drop=True)
        publisher.publish(wire.stored(THIRD, 21))
        await settled(wire, residency, SECOND)
        assert held(wire, residency, THIRD) == 8
        assert metrics.replays == ["empty", "filled"] and publisher.asked[-1] in (0, 1)


async def test_a_gap_without_a_replay_socket_restarts_the_view(wire, publisher, context, pump, residency, metrics):
    with following(publisher, context, pump, residency, metrics, replay=False) as subscriber:
        await eventually(lambda: subscriber.linked)
        await _hears(wire, publisher, residency)
        publisher.publish(wire.stored(SECOND, 11), drop=True)
        publisher.publish(wire.stored(THIRD, 21))
        await eventually(lambda: held(wire, residency, THIRD) == 8)
        state = residency.slot(0).state()
        assert state.residency is Residency.APPROXIMATE and "missed" in state.reason
        assert "unavailable" in metrics.replays


async def test_an_incomplete_replay_is_partial(wire, publisher, context, pump, residency, metrics):
    for first in (1, 11, 21):
        publisher.publish(wire.stored(FIRST, first))
    del publisher._sent[0]
    with following(publisher, context, pump, residency, metrics):
        await eventually(lambda: metrics.replays)
        assert metrics.replays == ["partial"]
        assert residency.statistics()["slots"][0]["gaps"] == 1
        assert residency.slot(0).state().residency is Residency.APPROXIMATE


async def _hears(wire, publisher, residency):
    """A SUB that has just shaken hands may not be known to the PUB yet: publish until something comes."""
    first_hashes = itertools.count(1000, 2)

    def heard():
        publisher.publish(wire.stored(FIRST, next(first_hashes)))
        return held(wire, residency, FIRST)

    await eventually(heard)


async def test_a_silent_replay_socket_times_out(wire, publisher, context, pump, residency, metrics):
    publisher.mute = True
    with following(publisher, context, pump, residency, metrics, replay_idle_s=0.05) as subscriber:
        await eventually(lambda: "timeout" in metrics.replays)
        await eventually(lambda: not subscriber.statistics()["replaying"])
        state = residency.slot(0).state()
        assert state.residency is Residency.APPROXIMATE and "no replay to show what was missed" in state.reason
        publisher.mute = False
        publisher.publish(wire.stored(FIRST, 1))
        await eventually(lambda: held(wire, residency, FIRST) == 8)
        subscriber.relearn()
        await eventually(lambda: not subscriber.statistics()["replaying"])


async def test_a_worker_restarted_on_the_same_port_gets_a_new_view(wire, context, pump, residency, metrics):
    publisher = wire.Publisher(context)
    ports = [int(address.rsplit(":", 1)[1]) for address in (publisher.endpoint, publisher.replay_endpoint)]
    publisher.publish(wire.stored(FIRST, 1))
    publisher.publish(wire.stored(SECOND, 11))
    with following(publisher, context, pump, residency, metrics) as subscriber:
        await settled(wire, residency, SECOND)
        publisher.close()
        await eventually(lambda: subscriber.lost)
        assert (
            residency.slot(0).state().residency is Residency.UNKNOWN
            and "connection" in residency.slot(0).state().reason
        )
        again = wire.Publisher(context, *ports)
        again.publish(wire.stored(THIRD, 1))
        await settled(wire, residency, THIRD)
        assert held(wire, residency, FIRST) == 0 and held(wire, residency, SECOND) == 0
        assert subscriber.statistics()["links"] == 2
        again.close()


async def test_malformed_frames_are_counted_and_skipped(wire, publisher, context, pump, residency, metrics):
    with following(publisher, context, pump, residency, metrics) as subscriber:
        await eventually(lambda: trusted(residency))
        publisher.publish(wire.stored(FIRST, 1))
        await settled(wire, residency, FIRST)
        publisher.send_raw(b"kv", b"short", b"x")
        publisher.send_raw(b"kv")
        publisher.publish(wire.stored(SECOND, 11))
        await settled(wire, residency, SECOND)
        assert subscriber.statistics()["malformed"] == 2


async def test_another_topic_is_ignored(wire, publisher, context, pump, residency, metrics):
    with following(publisher, context, pump, residency, metrics) as subscriber:
        await eventually(lambda: trusted(residency))
        publisher.send_raw(b"other", (0).to_bytes(8, "big"), b"x")
        publisher.publish(wire.stored(FIRST, 1))
        await settled(wire, residency, FIRST)
        assert subscriber.statistics()["malformed"] == 0


async def test_an_unusable_address_raises_and_leaks_nothing(wire, context, pump, residency, metrics):
    source = KvEventSource(0, "nonsense://x")
    subscriber = Subscriber(
        context, pump, residency, metrics.event_replays, slot=0, worker="w:1", source=source, on_lost=lambda: None
    )
    with pytest.raises(zmq.ZMQError):
        subscriber.start()
    subscriber.close()
    context.term()


async def test_a_close_during_a_replay_leaks_nothing(wire, context, pump, residency, metrics):
    publisher = wire.Publisher(context)
    publisher.mute = True
    with following(publisher, context, pump, residency, metrics) as subscriber:
        await eventually(lambda: publisher.asked)
        subscriber.close()
        subscriber.close()
    context.term()


def large_batch(wire, size_bytes):
    """One batch of KV events: as many blocks as make up that size."""
    tokens = list(range(70_000, 70_000 + size_bytes // 8 // 4 * 4))
    return msgspec.msgpack.encode([time.time(), [wire.stored(tokens, 1 << 40)], 0])


@pytest.fixture
def flood(wire):
    """A function: publish, or answer a replay, with large batches as fast as they are taken, in a thread."""
    over, threads = threading.Event(), []
    payload = large_batch(wire, 100_000)

    def begin(context, kind):
        socket = context.socket(kind)
        socket.linger, socket.sndhwm = 0, 1_000
        socket.bind("tcp://127.0.0.1:*")

        def send():
            head = [b"kv"]
            if kind == zmq.ROUTER:
                client, *_ = socket.recv_multipart()
                head = [client, b"", b"kv"]
            number = 0
            while not over.is_set():
                socket.send_multipart([*head, number.to_bytes(8, "big"), payload])
                number += 1
            socket.close()

        threads.append(threading.Thread(target=send))
        threads[-1].start()
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)

    yield begin
    over.set()
    for thread in threads:
        thread.join()


async def test_a_fast_publisher_does_not_fill_memory(context, pump, residency, metrics, flood):
    source = KvEventSource(0, flood(context, zmq.PUB), None, "kv")
    subscriber = Subscriber(
        context, pump, residency, metrics.event_replays, slot=0, worker="w:1", source=source, on_lost=lambda: None
    )
    before = start_peak()
    subscriber.start()
    await eventually(lambda: subscriber.statistics()["batches"] >= 100, 20.0)
    assert peak_bytes() - before < 120 << 20
    subscriber.close()


async def test_an_endless_replay_is_aborted(context, pump, metrics, flood, monkeypatch, wire):
    monkeypatch.setattr(replay, "MAX_BUFFERED_BYTES", 16 << 20)
    ended = []
    before = start_peak()
    asking = replay.EventReplay(
        context, pump, flood(context, zmq.ROUTER), 0, lambda seq, payload: time.sleep(0.01), ended.append
    )
    await eventually(lambda: ended, 20.0)
    assert ended == [replay.ReplayOutcome.BROKEN]
    assert peak_bytes() - before < 120 << 20
    asking.close()


async def test_an_oversized_message_restarts_the_subscription(wire, context, pump, residency, metrics, monkeypatch):
    monkeypatch.setattr(subscriber_module, "RELINK_S", 0.1)
    publisher = wire.Publisher(context)
    with following(publisher, context, pump, residency, metrics, replay=False) as subscriber:
        await eventually(lambda: subscriber.linked)
        publisher.send_raw(b"kv", bytes(8), large_batch(wire, 3 << 20))
        await eventually(lambda: subscriber.lost)
        assert subscriber.statistics()["batches"] == 0
        await eventually(lambda: subscriber.linked)
        publisher.publish(wire.stored(FIRST, 1))
        await eventually(lambda: held(wire, residency, FIRST) == 8)
