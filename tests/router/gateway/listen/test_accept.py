import asyncio
import os
import socket
from contextlib import suppress

import pytest

from router.gateway.listen import accept as module
from router.gateway.listen.accept import Acceptor, Listener
from router.gateway.listen.connection_limit import ConnectionLimit
from router.process.children.accept_balancer import LeastConnections
from router.process.shared_memory.ledger import Ledger, make_table
from tests.support.waiting import eventually


class Held(asyncio.Protocol):
    """A connection that reports its close to the limit, as the gateway's does."""

    unsent_bytes = 0

    def __init__(self, held: set, limit: ConnectionLimit) -> None:
        self._held, self._limit = held, limit

    def connection_made(self, transport):
        self.transport = transport
        self._held.add(self)
        self._limit.opened(self)

    def connection_lost(self, exc):
        self._held.discard(self)
        self._limit.left(self)

    def evict(self):
        self.transport.abort()


class Acceptors:
    """`count` acceptors on one socket, each with a connection limit of `limit`."""

    def __init__(self, count: int, limit: int = 1_000) -> None:
        self.limit = limit
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.socket.setblocking(False)
        table = make_table(count)
        self.accept_order = [LeastConnections(Ledger(table, count, number), count, number) for number in range(count)]
        os.close(table)
        self.held = [set() for _ in range(count)]
        self.listeners = [self.listen(number) for number in range(count)]
        self.clients: list[socket.socket] = []
        self.gone = 0

    def listen(self, number: int) -> Listener:
        held, accept_order = self.held[number], self.accept_order[number]
        loop = asyncio.get_running_loop()
        limit = ConnectionLimit(self.limit, loop.time, accept_order)
        return Listener(loop, Acceptor(loop, lambda: Held(held, limit), limit), self.socket.dup(), accept_order)

    async def connect(self, count: int) -> None:
        for _ in range(count):
            client = socket.socket()
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(self.socket.getsockname())
            self.clients.append(client)
        await eventually(lambda: sum(self.counts) + self.gone == len(self.clients))

    @property
    def counts(self) -> list[int]:
        return [len(held) for held in self.held]

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()
        for client in self.clients:
            client.close()
        self.socket.close()


@pytest.fixture
async def acceptors():
    made: list[Acceptors] = []

    def make(count: int, limit: int = 1_000) -> Acceptors:
        made.append(Acceptors(count, limit))
        return made[-1]

    yield make
    for each in made:
        each.close()
        await eventually(lambda each=each: not any(each.counts))


@pytest.mark.parametrize(("processes", "clients"), [(2, 8), (2, 64), (3, 64), (8, 64)])
async def test_few_long_connections_spread_evenly(acceptors, processes, clients):
    fleet = acceptors(processes)
    await fleet.connect(clients)
    assert max(fleet.counts) - min(fleet.counts) <= 1


async def test_a_process_that_lost_its_clients_accepts_the_next(acceptors):
    fleet = acceptors(2)
    await fleet.connect(8)
    for held in list(fleet.held[1]):
        held.transport.abort()
    await eventually(lambda: fleet.counts == [4, 0])
    fleet.gone = 4
    await fleet.connect(4)
    assert fleet.counts == [4, 4]


async def test_a_process_that_hangs_keeps_no_client_waiting(acceptors, monkeypatch):
    """The process that hangs has the fewest connections, so it would go first for ever."""
    monkeypatch.setattr(module, "PATIENCE_S", 0.005)
    fleet = acceptors(2)
    await fleet.connect(2)
    fleet.listeners[1]._loop.remove_reader(fleet.listeners[1]._listener)
    await fleet.connect(6)
    assert fleet.counts == [7, 1]


async def test_a_closed_process_is_not_waited_for(acceptors, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 1_000.0)
    fleet = acceptors(2)
    fleet.listeners[1].close()
    await fleet.connect(5)
    assert fleet.counts == [5, 0]
    first = fleet.accept_order[0]
    assert (first._connections, first._taken) == (5, 5)
    fleet.listeners[1] = fleet.listen(1)


async def test_accepting_pauses_without_file_descriptors(acceptors, monkeypatch, caplog):
    monkeypatch.setattr(module, "EXHAUSTED_S", 0.01)
    fleet = acceptors(1)
    listener = fleet.listeners[0]
    real, refusals = listener._listener, [OSError(24, "Too many open files")] * 2

    class Refusing:
        def accept(self):
            if refusals:
                raise refusals.pop()
            return real.accept()

        def __getattr__(self, name):
            return getattr(real, name)

    listener._listener = Refusing()
    await fleet.connect(3)
    assert fleet.counts == [3]
    assert "cannot accept" in caplog.text


async def test_each_process_keeps_its_share_of_the_connection_limit(acceptors):
    fleet = acceptors(2, limit=3)
    fleet.gone = 34  # the first silent clients are closed for the later ones
    await fleet.connect(40)
    assert fleet.counts == [3, 3]
    assert [accept_order._connections for accept_order in fleet.accept_order] == [3, 3]
