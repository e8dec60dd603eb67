import mmap

import msgspec
import pytest

from policies.view import WorkerId
from router.process.shared_memory import pins as module
from router.process.shared_memory.pins import PINS_BYTES, PLACES, ResponsePins
from router.process.shared_memory.replica_rows import ReplicaLedger
from router.replicas import messages
from router.replicas.fleet_channel import FleetChannel
from router.replicas.fleet_pins import FleetPins
from router.replicas.messages import Pinned
from tests.router.replicas.conftest import encoded
from tests.support.redis import needs_redis
from tests.support.waiting import eventually

WORKERS = [WorkerId("a:1"), WorkerId("b:2")]


class Gateway:
    """The table of one host and its channel, without Redis."""

    def __init__(self, name):
        memory = mmap.mmap(-1, PINS_BYTES)
        self.pins = ResponsePins(memory, 0, lambda: WORKERS)
        self.host = ResponsePins(memory, 0)
        self.channel = FleetChannel(name, 0, 1.0, None, pins=FleetPins(self.host))


def tell(sender, receiver, now_s):
    message = sender.channel.take(now_s)
    assert message is not None
    receiver.channel.receive(message, now_s)
    batch = messages.decode(message)
    assert batch is not None
    pinned = messages.PINNED.decode(batch.pins)
    return len(pinned.fresh) // 16, len(pinned.known) // 16


@pytest.fixture
def pair():
    """Return two that have heard each other, and have told all that they know."""
    one, two = Gateway("one"), Gateway("two")
    for tick in range(PLACES // messages.MOST_PINS + 2):
        now_s = 1.0 + tick / 5
        tell(one, two, now_s)
        tell(two, one, now_s)
    return one, two


def test_a_response_is_known_to_the_other_replica(pair):
    one, two = pair
    one.pins.learn("resp_1", WORKERS[1])
    assert tell(one, two, 10.0) == (1, 0)
    assert two.pins.worker("resp_1") == WORKERS[1]
    assert two.pins.worker("resp_2") is None


def test_what_was_heard_is_not_sent_on(pair):
    one, two = pair
    one.pins.learn("resp_1", WORKERS[1])
    tell(one, two, 10.0)
    assert tell(two, one, 10.2) == (0, 0)
    assert tell(one, two, 10.4) == (0, 0)


def test_a_new_replica_gets_what_all_know(pair):
    one, two = pair
    one.pins.learn("resp_1", WORKERS[1])
    tell(one, two, 10.0)
    again = Gateway("again")
    tell(again, two, 10.2)
    told = [tell(two, again, 10.4 + tick / 5)[1] for tick in range(PLACES // messages.MOST_PINS)]
    assert sum(told) == 1
    assert again.pins.worker("resp_1") == WORKERS[1]


def test_old_pins_do_not_replace_newer_ones(pair, monkeypatch):
    one, two = pair
    monkeypatch.setattr(module, "_digest", lambda text: 5 if text in WORKERS else 7)
    one.pins.learn("resp_1", WORKERS[0])
    told = one.host.part(0, PLACES)[0]
    monkeypatch.setattr(module, "_digest", lambda text: 5 if text in WORKERS else 7 + PLACES)
    two.pins.learn("resp_2", WORKERS[0])
    two.host.write(told, replace=False)
    assert two.pins.worker("resp_2") == WORKERS[0]
    two.host.write(told, replace=True)
    assert two.pins.worker("resp_2") is None


def test_a_message_holds_a_bounded_number(pair):
    one, two = pair
    for number in range(10_000):
        one.pins.learn(f"resp_{number}", WORKERS[0])
    assert tell(one, two, 10.0)[0] == messages.MOST_PINS
    tell(one, two, 10.2)
    kept = [number for number in range(10_000) if one.pins.worker(f"resp_{number}")]
    assert all(two.pins.worker(f"resp_{number}") for number in kept)


GARBAGE = [7, [b"x" * 16, 7], [b"x" * (16 * 8_193)], [b"x" * 15, b"y" * 17], [bytes(160), bytes(160)], ["text"]]


@pytest.mark.parametrize("part", GARBAGE, ids=range(len(GARBAGE)))
def test_nonsense_changes_nothing(pair, part):
    one, _ = pair
    one.channel.receive(encoded(pins=msgspec.Raw(msgspec.msgpack.encode(part))), 10.0)
    assert one.host.part(0, PLACES)[0] == b""


def test_a_message_without_pins_is_read():
    """Gateways of an earlier version send none."""
    encoded = msgspec.msgpack.encode(["x", 0, 1.0, 1, False, [], [], [0, ""], []])
    batch = messages.decode(encoded)
    assert batch is not None and messages.PINNED.decode(batch.pins) == Pinned()


@needs_redis
async def test_two_gateways_share_pins_over_redis(redis):
    from router.config.model import Config, RedisConfig
    from router.replicas.replica import Replica

    config = Config(redis=RedisConfig(url=redis.url, fleet="pins"))
    shared = [ReplicaLedger(), ReplicaLedger()]
    members = [Replica(config, rows=each.rows, pins=each.pins) for each in shared]
    tables = [each.ledger.pins(lambda: WORKERS) for each in shared]
    for member in members:
        member.start()
    await eventually(lambda: all(len(member.channel.senders.replicas) == 1 for member in members))
    tables[0].learn("resp_1", WORKERS[0])
    await eventually(lambda: tables[1].worker("resp_1") == WORKERS[0])
    for member, each in zip(members, shared, strict=True):
        await member.aclose()
        each.close()
