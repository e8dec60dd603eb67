"""Both sides of a takeover on one event loop with real sockets. Whole processes are tested in end_to_end."""

import asyncio
import os
import socket
import stat
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from router.config.model import Config, WorkerConfig
from router.control.start import initial
from router.process.listeners import Listeners, admin_socket, listen_addresses
from router.process.takeover import client as takeover_client
from router.process.takeover import messages as takeover_messages
from router.process.takeover import server as takeover_server
from router.process.takeover.client import TakeoverClient
from router.process.takeover.messages import (
    VERSION,
    HandedState,
    SocketsOffered,
    SuccessorReady,
    TakeoverError,
    TakeoverRefused,
    decode,
    encode,
)
from router.process.takeover.server import TakeoverCallbacks, TakeoverServer
from router.requests.front import ListenError
from tests.support.waiting import eventually


class Running:
    """A gateway that runs, as far as a successor sees it."""

    def __init__(self, path, config=None, **changes):
        self.config = config or Config(host="127.0.0.1", port=0, admin_port=0)
        self.listeners = Listeners((socket.create_server(("127.0.0.1", 0)),), admin_socket(self.config))
        self.changes = changes
        self.drained = ("a:1",)
        self.requests = {"a:1": 2}
        self.withdrawn = 0
        self.handed_over = asyncio.Event()
        self.told = []
        self.ends = []
        self.handed = HandedState()
        self.side = TakeoverCallbacks(
            offer=self.offer,
            withdraw=self.withdraw,
            release_listeners=self.release_listeners,
            in_flight=lambda: self.requests,
            drain_alone=self.drain_alone,
            drained=lambda: self.drained,
            superseded=lambda: self.ends.append("superseded"),
            lost=lambda: self.ends.append("lost"),
        )
        self.successors = TakeoverServer(str(path), self.side)

    def offer(self):
        offered = SocketsOffered(
            version=VERSION,
            pid=os.getpid(),
            listen_addresses=listen_addresses(self.config, self.listeners, None),
            public=1,
            manager_owned=False,
            ready=3,
        )
        descriptors = [*(each.fileno() for each in self.listeners.sockets), self.handed.descriptor]
        return msgspec.structs.replace(offered, **self.changes), descriptors

    def drain_alone(self, workers):
        self.told.append(tuple(workers))
        self.drained = tuple(workers)

    def withdraw(self):
        self.withdrawn += 1

    async def release_listeners(self):
        self.handed_over.set()

    @property
    def port(self):
        return self.listeners.public[0].getsockname()[1]

    @property
    def admin_port(self):
        return self.listeners.admin.getsockname()[1]


@pytest.fixture
async def start(tmp_path):
    running = []

    def begin(path=tmp_path / "takeover.sock", **changes):
        gateway = Running(path, **changes)
        gateway.path = str(path)
        gateway.successors.start()
        running.append(gateway)
        return gateway

    yield begin
    for gateway in running:
        await gateway.successors.aclose()
        gateway.listeners.close()
        gateway.handed.close()


@pytest.fixture
async def find():
    """Find a gateway by its path. The client and its sockets are closed at the end."""
    clients = []

    async def ask(path):
        clients.append(await TakeoverClient.find(str(path)))
        return clients[-1]

    yield ask
    for client in clients:
        client.listeners.close()
        await client.aclose()


async def test_sockets_are_passed_and_the_old_process_drains(start, find):
    gateway = start()
    found = await find(gateway.path)
    assert [each.getsockname()[1] for each in found.listeners.sockets] == [gateway.port, gateway.admin_port]
    assert found.offered.ready == 3
    found.check(gateway.config)
    assert not gateway.handed_over.is_set()
    await found.drain()
    assert gateway.handed_over.is_set()
    assert found.in_flight == {"a:1": 2}
    assert not found.drains("a:1")  # it has not said so yet
    drained = ("a:1",)
    found.follow(lambda: drained)
    await eventually(lambda: found.drains("a:1"))
    gateway.requests = {}
    await eventually(lambda: found.in_flight == {})
    drained = ("c:3",)
    await eventually(lambda: found.drains("c:3") and not found.drains("a:1"))
    assert gateway.told == [("a:1",), ("c:3",)]
    assert not found.gone.is_set()
    await gateway.successors.aclose()
    await found.ended(5)
    assert found.gone.is_set()
    assert found.drains("any:9")
    assert not found.stuck
    with socket.create_connection(("127.0.0.1", gateway.port)):  # ours now
        found.listeners.public[0].accept()[0].close()
    assert gateway.withdrawn == 0


async def test_find_without_a_gateway_returns_none(tmp_path):
    assert await TakeoverClient.find(str(tmp_path / "none.sock")) is None
    left_behind = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    left_behind.bind(str(tmp_path / "dead.sock"))
    left_behind.close()
    assert await TakeoverClient.find(str(tmp_path / "dead.sock")) is None


async def test_a_successor_that_ends_before_it_is_ready_changes_nothing(start, find):
    gateway = start()
    found = await find(gateway.path)
    found.listeners.close()
    await found.aclose()
    await eventually(lambda: gateway.withdrawn == 1)
    assert not gateway.handed_over.is_set()
    again = await find(gateway.path)
    await again.drain()
    assert gateway.handed_over.is_set()


@pytest.mark.parametrize("step", ["ready", "draining", "following"])
async def test_a_successor_that_dies_after_it_was_ready_is_reported_lost(start, find, step):
    gateway = start()
    found = await find(gateway.path)
    if step == "ready":
        found._connection.send(encode(SuccessorReady()))
    else:
        await found.drain()
    if step == "following":
        found.follow(lambda: ("c:3",))
        await eventually(lambda: gateway.told == [("c:3",)])
    await found.aclose()
    await eventually(lambda: gateway.ends == ["lost"])
    await gateway.successors.start_again()
    gateway.handed_over.clear()
    again = await find(gateway.path)
    await again.drain()
    assert gateway.handed_over.is_set()


async def test_a_successor_that_announces_its_end_is_not_lost(start, find):
    gateway = start()
    found = await find(gateway.path)
    found.listeners.close()
    await found.drain()
    found.follow(tuple)
    found.say_ending()
    await eventually(lambda: gateway.ends == ["superseded"])
    await found.aclose()
    found.say_ending()  # nobody to tell
    await eventually(lambda: not gateway.successors._busy)
    assert gateway.ends == ["superseded"]


async def test_a_successor_with_an_unknown_message_supersedes(start, find):
    gateway = start()
    found = await find(gateway.path)
    found.listeners.close()
    await found.drain()
    found._connection.send(b"hello")
    await eventually(lambda: gateway.ends == ["superseded"])
    await found.aclose()


async def test_a_second_successor_is_refused(start, find):
    gateway = start()
    first = await find(gateway.path)
    with pytest.raises(TakeoverError, match="refused: another process is taking over"):
        await find(gateway.path)
    await first.drain()
    with pytest.raises(TakeoverError, match="refused"):
        await find(gateway.path)


async def test_different_addresses_are_refused_and_named(start, find):
    gateway = start()
    found = await find(gateway.path)
    config = gateway.config
    for good in (config, msgspec.structs.replace(config, port=gateway.port, admin_port=gateway.admin_port)):
        found.check(good)
    other = gateway.port + 1
    for change, said in (
        ({"port": other}, f"public port at 127.0.0.1:{gateway.port}.*for 127.0.0.1:{other}; write"),
        ({"host": "0.0.0.0"}, r"configured for 0\.0\.0\.0:0"),
        ({"uds": "/run/x.sock"}, r"configured for /run/x\.sock"),
        ({"admin_host": "127.0.0.2"}, f"admin port at 127.0.0.1:{gateway.admin_port}"),
    ):
        with pytest.raises(TakeoverError, match=said):
            found.check(msgspec.structs.replace(config, **change))


async def test_a_service_managers_sockets_need_not_match_the_settings(start, find):
    gateway = start(listen_addresses=takeover_messages.ListenAddresses(None, None, 1, None, 2), manager_owned=True)
    found = await find(gateway.path)
    found.check(Config(host="10.0.0.1", port=99, admin_port=98))
    assert found.listeners.manager_owned


async def test_an_unknown_version_is_refused(start, find):
    gateway = start(version=VERSION + 1)
    with pytest.raises(TakeoverError, match="does not know"):
        await find(gateway.path)
    with pytest.raises(TakeoverError, match="another version"):
        decode(b"hello")
    assert decode(encode(TakeoverRefused("no"))) == TakeoverRefused("no")


async def test_only_the_same_user_is_served(start, find, monkeypatch):
    gateway = start()
    assert stat.S_IMODE(os.stat(gateway.path).st_mode) == 0o600
    monkeypatch.setattr(takeover_server, "same_user", lambda connection: False)
    with pytest.raises(TakeoverError, match="another user"):
        await find(gateway.path)
    monkeypatch.setattr(takeover_client, "same_user", lambda connection: False)
    with pytest.raises(TakeoverError, match="belongs to another user"):
        await find(gateway.path)
    assert not gateway.handed_over.is_set()


def test_the_kernel_reports_the_user_at_the_other_end(monkeypatch):
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert takeover_messages.same_user(ours)
        monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
        assert not takeover_messages.same_user(ours)


async def test_a_process_always_listens_at_the_path(start, find, tmp_path):
    path = tmp_path / "takeover.sock"
    old, new = start(path), start(path)
    found = await find(path)
    assert found.listeners.public[0].getsockname()[1] == new.port
    found.listeners.close()
    await found.aclose()
    await old.successors.aclose()
    assert path.exists()  # it is the new one's
    await new.successors.aclose()
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []


async def test_an_unusable_path_is_an_error(start, tmp_path):
    plain = tmp_path / "file"
    plain.write_text("keep me")
    with pytest.raises(TakeoverError, match="no socket is there"):
        start(plain)
    assert plain.read_text() == "keep me"
    with pytest.raises(TakeoverError, match="write another path"):
        start(tmp_path / "missing" / "takeover.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(tmp_path / "other.sock"))
        other.listen()
        with pytest.raises(TakeoverError, match="write another path"):
            await TakeoverClient.find(str(tmp_path / "other.sock"))


async def test_a_silent_gateway_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(takeover_client, "ANSWER_S", 0.1)
    path = str(tmp_path / "stuck.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stuck:
        stuck.bind(path)
        stuck.listen()
        with pytest.raises(TakeoverError, match="did not answer"):
            await TakeoverClient.find(path)


async def test_drain_survives_a_stuck_or_dead_gateway(start, find, monkeypatch):
    monkeypatch.setattr(takeover_client, "ANSWER_S", 0.2)
    gateway = start()

    async def never():
        await asyncio.Event().wait()

    monkeypatch.setattr(gateway, "release_listeners", never)
    gateway.successors._callbacks = replace(gateway.side, release_listeners=never)
    found = await find(gateway.path)
    await found.drain()
    assert found.stuck
    dying = start(Path(gateway.path).with_name("dying.sock"))
    found = await find(dying.path)
    await dying.successors.aclose()
    await found.drain()
    assert not found.stuck
    found.follow(tuple)
    await found.ended(5)
    assert found.drains("b:2")


def test_the_admin_ports_error_names_the_setting():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=rf"admin port 127.0.0.1:{port}.*--admin-port"):
            admin_socket(Config(admin_port=port))


def test_duplicates_outlive_their_listeners():
    with socket.create_server(("127.0.0.1", 0)) as public, socket.create_server(("127.0.0.1", 0)) as admin:
        ours = Listeners((public,), admin, manager_owned=True)
        kept = ours.duplicates()
        assert (len(kept.public), kept.manager_owned) == (1, True)
        address, admin_address = public.getsockname(), admin.getsockname()
        ours.close()
        assert kept.admin.getsockname() == admin_address
        socket.create_connection(address).close()
        open_before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match="descriptor"):
            Listeners((*kept.public, public)).duplicates()
        assert len(os.listdir("/proc/self/fd")) == open_before
        kept.close()


async def test_the_desired_state_is_handed_over_in_its_last_version(start, find):
    gateway = start()
    first = initial(Config(workers=tuple(WorkerConfig(url=f"http://10.0.0.{n}:80") for n in range(250)))).stored
    last = initial(Config(workers=(WorkerConfig(url="http://a:1", api_key="k"),))).stored
    gateway.handed.write(first)
    found = await find(gateway.path)
    assert found.state() == first
    assert [each.getsockname()[1] for each in found.listeners.sockets] == [gateway.port, gateway.admin_port]
    gateway.handed.write(last)
    assert found.state() == last


async def test_a_state_that_cannot_be_read_is_an_error(start, find):
    found = await find(start().path)
    with pytest.raises(TakeoverError, match="desired state cannot be read"):
        found.state()
