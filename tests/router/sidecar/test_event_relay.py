import asyncio
from contextlib import asynccontextmanager

import pytest
import zmq

from backends.vllm.event_publisher import EventBuffer, EventSockets
from backends.worker import KvEventSource
from policies.view import Residency, WorkerId
from router.config.model import Config, SidecarConfig
from router.residency.residency_map import ResidencyMap
from router.sidecar.event_relay import EventRelay
from router.sidecar.event_relays import EventRelays, RelayEvents
from router.workers.event_pump import EventPump
from router.workers.subscriber import Subscriber
from tests.support.kv_wire import BLOCK_SIZE, Wire, ids_prompt
from tests.support.waiting import eventually

FIRST, SECOND, THIRD = list(range(100, 108)), list(range(200, 208)), list(range(300, 308))
WIRE = Wire()


class Engine:
    """The publisher of one engine process. `keeps` batches are replayed."""

    def __init__(self, ports=(0, 0), keeps=10_000):
        self._buffer = EventBuffer(max_batches=keeps)
        self._sockets = EventSockets("kv", self._buffer, 1_000)
        self.endpoints = self._sockets.open("127.0.0.1", *ports)
        self.ports = tuple(int(endpoint.rpartition(":")[2]) for endpoint in self.endpoints)
        self.sent = []

    def stores(self, tokens, *, drop=False):
        seq, payload = len(self.sent), WIRE.batch(WIRE.stored(tokens))
        self.sent.append((seq, payload))
        self._buffer.append(seq, payload)
        if not drop:
            self._sockets.publish(seq, payload)

    def stop(self):
        self._sockets.close()


class Counted:
    def __init__(self):
        self.outcomes = []

    def replayed(self, worker, outcome):
        self.outcomes.append(outcome)


class GatewayView:
    """What a gateway knows of the worker behind a relay."""

    def __init__(self, context, described):
        self.residency = ResidencyMap()
        self.residency.add(0, WorkerId("w:1"), BLOCK_SIZE, 1_000, events=True)
        self.metrics = Counted()
        source = KvEventSource(0, described["endpoint"], described["replay_endpoint"], described["topic"])
        self.subscriber = Subscriber(
            context,
            EventPump(lambda duration_s: None),
            self.residency,
            self.metrics,
            slot=0,
            worker="w:1",
            source=source,
            on_lost=lambda: None,
            replay_idle_s=0.3,
        )
        self.subscriber.start()

    def cached(self, tokens):
        return self.residency.match(ids_prompt([*tokens, 1]), [0])[0].tokens

    @property
    def exact(self):
        return self.residency.state(0).residency is Residency.EXACT

    async def knows(self, tokens):
        await eventually(lambda: self.cached(tokens) == len(tokens))


@pytest.fixture
async def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
async def view(context):
    views = []

    def begin(relays):
        views.append(GatewayView(context, relays.describe()["0"]))
        return views[-1]

    yield begin
    for one in views:
        one.subscriber.close()


def settings(**values):
    return Config(host="127.0.0.1", sidecar=SidecarConfig(kv_events_port=0, kv_events_replay_port=0, **values))


@asynccontextmanager
async def relaying(engine, *, replay=True, moved=lambda rank: None, lost=lambda: None, **values):
    relays = EventRelays(settings(**values), "w:1", Counted(), RelayEvents(moved, lost, lambda duration_s: None))
    source = KvEventSource(0, engine.endpoints[0], engine.endpoints[1] if replay else None, "kv")
    relays.fit([source])
    try:
        await eventually(relays.describe)
        yield relays
    finally:
        relays.close()


async def test_a_gateway_behind_the_relay_is_exact(view):
    engine = Engine()
    engine.stores(FIRST)
    async with relaying(engine) as relays:
        gateway = view(relays)
        await gateway.knows(FIRST)
        await eventually(lambda: gateway.exact)
        engine.stores(SECOND)
        await gateway.knows(SECOND)
        assert gateway.exact and gateway.metrics.outcomes == ["filled"]
    engine.stop()


async def test_batches_keep_their_numbers_and_bytes(context):
    engine = Engine()
    engine.stores(FIRST)
    async with relaying(engine) as relays:
        described = relays.describe()["0"]
        socket = context.socket(zmq.DEALER)
        socket.connect(described["replay_endpoint"])
        engine.stores(SECOND)
        await eventually(lambda: relays.statistics()[0]["next_seq"] == 2)
        socket.send_multipart([b"", bytes(8)])
        frames = [await asyncio.to_thread(socket.recv_multipart) for _ in range(2)]
        assert [(int.from_bytes(seq, "big"), payload) for _, _, seq, payload in frames] == engine.sent
        assert {topic for _, topic, _, _ in frames} == {b"kv"}
    engine.stop()


async def test_the_relay_replays_what_the_engine_has_forgotten(view):
    engine = Engine(keeps=1)
    async with relaying(engine) as relays:
        before = view(relays)
        await eventually(lambda: before.exact)
        for tokens in (FIRST, SECOND, THIRD):
            engine.stores(tokens)
        await before.knows(THIRD)
        restarted = view(relays)
        for tokens in (FIRST, SECOND, THIRD):
            await restarted.knows(tokens)
        await eventually(lambda: restarted.exact)
    engine.stop()


async def test_a_relay_that_forgot_the_first_batches_says_so(view):
    engine = Engine(keeps=1)
    async with relaying(engine, kv_events_buffer_bytes=1) as relays:
        first = view(relays)
        await eventually(lambda: first.exact)
        engine.stores(FIRST)
        engine.stores(SECOND)
        await first.knows(SECOND)
        late = view(relays)
        await late.knows(SECOND)
        assert late.metrics.outcomes == ["partial"] and not late.exact
    engine.stop()


async def test_a_batch_that_the_link_lost_reaches_the_gateway_in_order(view):
    engine = Engine()
    async with relaying(engine) as relays:
        gateway = view(relays)
        await eventually(lambda: gateway.exact)
        engine.stores(FIRST)
        await gateway.knows(FIRST)
        engine.stores(SECOND, drop=True)
        engine.stores(THIRD)
        await gateway.knows(THIRD)
        assert gateway.cached(SECOND) == 8 and gateway.exact
        assert gateway.residency.statistics()["slots"][0]["gaps"] == 0
    engine.stop()


async def test_an_engine_that_restarts_is_another_engine_to_the_gateway(view):
    engine, lost = Engine(), []
    engine.stores(FIRST)
    engine.stores(SECOND)
    async with relaying(engine, lost=lambda: lost.append(True)) as relays:
        gateway = view(relays)
        await gateway.knows(SECOND)
        engine.stop()
        await eventually(lambda: gateway.residency.state(0).residency is Residency.UNKNOWN)
        await eventually(lambda: lost and not relays.statistics()[0]["open"])
        again = Engine(engine.ports)
        again.stores(THIRD)
        await gateway.knows(THIRD)
        await eventually(lambda: gateway.exact)
        assert gateway.cached(FIRST) == gateway.cached(SECOND) == 0
        late = view(relays)
        await late.knows(THIRD)
        assert late.cached(FIRST) == 0
        again.stop()


def batch(tokens):
    return WIRE.batch(WIRE.stored(tokens))


@pytest.fixture
async def relay():
    """A relay of an engine without a replay socket, whose link is up."""
    relay = EventRelay(KvEventSource(0, "tcp://127.0.0.1:9", None, "kv"), "127.0.0.1", (0, 0), 10_000)
    relay.link_up(0)
    relay.replay_ended(0, False)
    yield relay
    relay.close()


async def test_without_the_engines_replay_an_empty_buffer_is_no_proof(relay):
    assert relay.describe()["replay_endpoint"] is None
    relay.ingest(0, 5, batch(FIRST))
    relay.replay_ended(0, False)
    assert relay.statistics()["buffered_batches"] == 1  # a gap shows what is not there
    assert relay.describe()["replay_endpoint"] is not None


async def test_without_the_engines_replay_a_buffer_from_batch_0_on_is_proof_until_the_link_drops(relay):
    relay.ingest(0, 0, batch(FIRST))
    assert relay.describe()["replay_endpoint"] is not None
    relay.link_lost(0)
    relay.link_up(0)
    relay.replay_ended(0, False)
    assert relay.describe()["replay_endpoint"] is None
    relay.ingest(0, 1, batch(SECOND))
    assert relay.describe()["replay_endpoint"] is None  # batch 1 may be another engine's
    assert relay.statistics()["buffered_batches"] == 1


async def test_every_batch_is_progress_of_its_rank():
    engine, moved = Engine(), []
    engine.stores(FIRST)
    async with relaying(engine, moved=moved.append):
        assert moved == [0]
        engine.stores(SECOND)
        await eventually(lambda: moved == [0, 0])
    engine.stop()


async def test_ranks_get_the_next_ports_and_leave_when_their_publisher_does():
    engines = [Engine(), Engine()]
    relays = EventRelays(settings(), "w:1", Counted(), RelayEvents(lambda rank: None, lambda: None, lambda s: None))
    sources = [KvEventSource(rank, *engine.endpoints, "kv") for rank, engine in enumerate(engines)]
    relays.fit(sources)
    await eventually(lambda: relays.describe().keys() == {"0", "1"})
    relays.fit(sources[:1])
    assert relays.describe().keys() == {"0"}
    relays.fit([KvEventSource(0, "nonsense://", None)])
    assert relays.describe() == {}
    relays.close()
    for engine in engines:
        engine.stop()


async def test_a_port_in_use_is_logged_and_tried_again(caplog, monkeypatch):
    monkeypatch.setattr("router.sidecar.event_relay.BIND_AGAIN_S", 0.02)
    taken, engine = Engine(), Engine()
    relay = EventRelay(KvEventSource(0, *engine.endpoints, "kv"), "127.0.0.1", (taken.ports[0], 0), 1_000)
    relay.link_up(0)
    relay.replay_ended(0, True)
    assert "KV events cannot be published" in caplog.text and relay.describe() is None
    taken.stop()
    await eventually(relay.describe)
    relay.close()
    engine.stop()
