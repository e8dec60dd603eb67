import asyncio
import random
import socket
from time import perf_counter

from router.gateway.listen.connection_limit import BETWEEN_REQUESTS_S, HANDSHAKE_GRACE_S, ConnectionLimit
from tests.support.answers import after, answer_json
from tests.support.raw_client import PLAIN, get, post
from tests.support.waiting import delivered, eventually


class Connection:
    def __init__(self):
        self.unsent_bytes = 0
        self.evicted = False

    def evict(self):
        self.evicted = True


class AcceptOrder:
    def __init__(self):
        self.connections = 0

    def accepted(self):
        self.connections += 1

    def closed(self):
        self.connections -= 1


class Port:
    """A connection limit with its own clock."""

    def __init__(self, limit):
        self.now_s = 0.0
        self.accept_order = AcceptOrder()
        self.limit = ConnectionLimit(limit, lambda: self.now_s, self.accept_order)

    def accept(self, after_s=1.0):
        self.now_s += after_s
        if not self.limit.has_room():
            return None
        made = Connection()
        self.limit.admit(made)
        self.limit.handshake_started(made, made.evict)
        return made

    def connect(self, after_s=1.0):
        made = self.accept(after_s)
        if made is not None:
            self.limit.opened(made)
        return made


def test_handshakes_count_against_the_limit():
    port = Port(2)
    first, second = port.accept(), port.connect()
    port.limit.busy(second)
    assert port.accept(0.1) is None
    assert port.limit.statistics() == {"open": 2, "opening": 1, "evicted": 0, "refused": 1}
    port.limit.left(first)
    assert port.accept(0.1) is not None
    assert port.accept_order.connections == port.limit.open == 2


def test_a_slow_handshake_is_closed_before_an_idle_connection():
    port = Port(2)
    idle, slow = port.connect(), port.accept()
    assert port.accept(HANDSHAKE_GRACE_S) is not None
    assert (idle.evicted, slow.evicted) == (False, True)


def test_the_longest_idle_connection_is_closed_used_or_not():
    port = Port(3)
    unused, kept, busy = port.connect(), port.connect(), port.connect()
    port.limit.idle(kept, port.now_s)
    port.limit.busy(busy)
    assert port.connect(5) is not None and unused.evicted
    assert port.connect(5) is not None and kept.evicted
    assert not busy.evicted


def test_a_connection_with_a_request_is_never_closed_for_another():
    port = Port(2)
    for connection in (port.connect(), port.connect()):
        port.limit.busy(connection)
    assert port.connect(1_000) is None
    assert port.limit.refused == 1


def test_a_connection_that_was_just_answered_is_kept():
    port = Port(1)
    kept = port.connect()
    port.limit.idle(kept, port.now_s)
    assert port.connect(BETWEEN_REQUESTS_S / 2) is None
    assert port.connect(BETWEEN_REQUESTS_S) is not None and kept.evicted


def test_a_connection_with_unsent_bytes_is_kept():
    port = Port(2)
    reading, idle = port.connect(), port.connect()
    reading.unsent_bytes = 1
    assert port.connect() is not None
    assert (reading.evicted, idle.evicted) == (False, True)


def test_a_connection_that_closes_twice_counts_once():
    port = Port(1)
    first = port.connect()
    second = port.connect()
    assert first.evicted
    for connection in (first, first, second, second):
        port.limit.left(connection)
    port.limit.idle(second, port.now_s)  # it was idle when it closed, and must not be kept
    assert port.limit.statistics()["open"] == port.accept_order.connections == 0
    assert port.connect() is not None


def test_each_event_takes_constant_time():
    def cost_s(places):
        port = Port(places)
        connections = [port.connect() for _ in range(places)]
        for connection in connections:
            port.limit.idle(connection, port.now_s)
        random.Random(0).shuffle(connections)
        port.now_s += 10
        began_s = perf_counter()
        for _ in range(2_000):
            port.connect()
        return perf_counter() - began_s

    small, large = (min(cost_s(places) for _ in range(3)) for places in (100, 20_000))
    assert large < 8 * small  # a scan would cost 200 times as much


# on the wire


async def knock(gate):
    """Open a TCP connection that sends nothing."""
    host, _, port = gate.address.rpartition(":")
    made = socket.socket()
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, (host, int(port)))
    return made


def is_open(connection):
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


async def test_silent_sockets_stay_within_the_limit(rig):
    gate = await rig(answer_json, limits={"max_connections": 20})
    knocking = [await knock(gate) for _ in range(100)]
    await eventually(lambda: sum(map(is_open, knocking)) == 20)
    statistics = gate.gateway.statistics()
    assert statistics["connections"] == 20
    assert statistics["connections_refused"] + statistics["connections_evicted"] == 80
    for each in knocking:
        each.close()
    await eventually(lambda: gate.gateway.statistics()["connections"] == 0)


async def test_a_new_client_replaces_a_silent_one(rig):
    gate = await rig(answer_json, limits={"max_connections": 3})
    silent = [await gate.connect() for _ in range(3)]
    assert (await gate.ask(post(body=PLAIN))).status == 200
    assert await silent[0].closed() == b""
    assert (await silent[1].ask(get(b"/livez"))).status == 200


async def test_a_request_in_progress_keeps_its_connection(rig):
    go_on = asyncio.Event()

    gate = await rig(after(go_on), limits={"max_connections": 2})
    asking, sending = await gate.connect(), await gate.connect()
    asking.writer.write(post(body=PLAIN))
    sending.writer.write(post(body=PLAIN)[:-5])  # half a body counts as a request in progress
    await eventually(lambda: gate.gateway.statistics()["streams"] == 1)
    await delivered()
    assert await (await gate.connect()).closed() == b""
    go_on.set()
    sending.writer.write(post(body=PLAIN)[-5:])
    assert [(await each.read()).status for each in (asking, sending)] == [200, 200]
