"""The whole data plane without sockets and without an event loop. Bytes enter on one side and leave on the other, in an
order that the test chooses.
"""

import logging
import random
import socket
from collections import deque
from itertools import pairwise

import msgspec
from hypothesis import strategies as st

from backends.worker import parse_endpoint
from policies.registry import build_policy
from policies.spec import PolicySpec
from router.config.model import Config
from router.gateway.assembly import Assembly, GatewayContext
from router.gateway.client import ClientConnection
from router.metrics.registry import Registry
from router.placement.core import DecisionCore
from router.placement.fleet.fleet import Fleet
from router.requests.metrics import GatewayMetrics
from router.residency.residency_map import ResidencyMap
from router.security.instance import Instance
from tests.support.gateway_rig import FACTS, Recorded, build_identity

INSTANCE = Instance("warmroute-property")


class Never:
    def cancel(self):
        pass


class Dial:
    """A dial of the gateway. It runs to its end in one turn, unless it is cancelled before."""

    def __init__(self, coroutine):
        self._coroutine = coroutine

    def run(self):
        try:
            self._coroutine.send(None)
        except (StopIteration, RuntimeError):  # RuntimeError: cancelled before
            return
        raise AssertionError("nothing here may wait")

    def cancel(self):
        self._coroutine.close()


class Turns:
    """The part of an event loop that the data plane needs. `run` continues until nothing is left to do."""

    def __init__(self):
        self.now_s = 1_000.0
        self.soon = deque()
        self.dials = []

    def time(self):
        return self.now_s

    def call_soon(self, call, *arguments):
        self.soon.append((call, arguments))

    def call_later(self, delay_s, call, *arguments):
        """Return a timer. It never fires, because no time passes."""
        return Never()

    def create_task(self, coroutine):
        dial = Dial(coroutine)
        self.call_soon(dial.run)
        return dial

    async def create_connection(self, factory, host, port, **_):
        dialled = End(self, factory())
        self.dials.append(dialled)
        return dialled.transport, dialled.protocol

    def run(self):
        for _ in range(100_000):
            if not self.soon:
                return
            call, arguments = self.soon.popleft()
            call(*arguments)
        raise AssertionError("the loop never comes to rest")


class NoSocket:
    family = socket.AF_INET

    def setsockopt(self, *_):
        pass


class FakeTransport:
    """Keep the written bytes. `close` notifies the protocol one iteration later, as asyncio does."""

    def __init__(self, turns, protocol):
        self._turns, self._protocol = turns, protocol
        self.written = bytearray()
        self.closing = self.ended = False
        protocol.connection_made(self)

    def write(self, data):
        assert isinstance(data, bytes)
        if not self.closing:
            self.written += data

    def writelines(self, pieces):
        self.write(b"".join(pieces))

    def close(self):
        if not self.closing:
            self.closing = True
            self._turns.call_soon(self._protocol.connection_lost, None)

    abort = close

    def write_eof(self):
        self.ended = True

    def can_write_eof(self):
        return True

    def is_closing(self):
        return self.closing

    def get_write_buffer_size(self):
        return 0

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_extra_info(self, name, default=None):
        return {"peername": ("192.0.2.1", 1), "socket": NoSocket()}.get(name, default)

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True


class End:
    """The far end of one connection, with the bytes that it sends and has received."""

    def __init__(self, turns, protocol):
        self._turns, self.protocol = turns, protocol
        self.transport = FakeTransport(turns, protocol)

    @property
    def got(self):
        return bytes(self.transport.written)

    @property
    def closed(self):
        return self.transport.closing or self.transport.ended

    def send(self, *pieces):
        for piece in pieces:
            if piece and not self.transport.closing:
                self.protocol.data_received(piece)
                self._turns.run()

    def leave(self):
        if not self.transport.closing:
            self.protocol.eof_received()
            self.transport.close()
        self._turns.run()


class Failures(logging.Handler):
    """The gateway's log lines about its own defects."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.records = []

    def emit(self, record):
        self.records.append(record)


class World:
    """A gateway with one worker, which is ready. `dials` lists the connections to it."""

    def __init__(self, **settings):
        # a task of its own would probe a worker that failed
        config = msgspec.convert({"retries": {"query_of_death_s": 0}, **settings}, Config)
        self.turns = Turns()
        residency = ResidencyMap()
        fleet = self.fleet = Fleet(config.health, residency)
        joined = fleet.add(parse_endpoint("http://worker:1"), self.turns.now_s)
        fleet.probe_succeeded(joined.id, FACTS, self.turns.now_s)
        policy = build_policy(PolicySpec("round_robin"), random.Random(0))
        self.core = DecisionCore(fleet, residency, policy, spec=PolicySpec("round_robin"))
        self._recorded = Recorded(self.core)
        context = GatewayContext(
            config, self.core, fleet, build_identity(config), GatewayMetrics(Registry()), instance=INSTANCE
        )
        self.parts = Assembly(context, self.turns)
        ids = self.parts.services.request_ids
        ids._prefix, ids._next = b"property", lambda: 0
        self._failures = Failures()
        logging.getLogger("warmroute.gateway").handlers = [self._failures]

    def client(self):
        return End(self.turns, ClientConnection(self.parts.services))

    @property
    def dials(self):
        return self.turns.dials

    @property
    def lifecycle(self):
        """Return the lifecycle events of the requests; none of a compiled gateway."""
        return self._recorded.events

    @property
    def usage(self):
        """Return the usage of the last request; None of a compiled gateway."""
        return self._recorded.usage

    @property
    def failures(self):
        """Return the defects that the gateway caught and logged."""
        return [record.getMessage() for record in self._failures.records]

    @property
    def pooled(self):
        return self.parts.pools.statistics()["idle"]

    def at_rest(self):
        """Return whether no stream, body or ticket of any request is left."""
        statistics = self.parts.statistics()
        running = sum(lane["running_requests"] for lane in self.core.statistics()["workers"].values())
        return (statistics["streams"], statistics["buffered_body_bytes"], running) == (0, 0, 0)


CUTS = st.lists(st.integers(0, 1 << 30), max_size=12)


def cut_up(raw, cuts):
    ends = sorted({cut % (len(raw) + 1) for cut in cuts} | {0, len(raw)})
    return [raw[start:end] for start, end in pairwise(ends)]


def byte_by_byte(raw):
    """Cut into single bytes, or into pieces of 997 if there are many."""
    size = 997 if len(raw) > 20_000 else 1
    return [raw[start : start + size] for start in range(0, len(raw), size)]
