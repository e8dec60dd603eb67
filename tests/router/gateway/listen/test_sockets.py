import asyncio
import os
import socket
from contextlib import closing

import pytest

from router.config.model import Config
from router.gateway.listen import sockets as listen
from router.gateway.listen.accept import Acceptor, Listener
from router.gateway.listen.connection_limit import ConnectionLimit
from router.gateway.listen.sockets import (
    ListenError,
    claim_unix_path,
    public_sockets,
    remove_socket_file,
    socket_file,
)


@pytest.fixture
def sockets():
    """Open listening sockets, and close them after the test."""
    made = []

    def sockets(**settings):
        listeners = public_sockets(Config(**settings), 16)
        made.extend(listeners)
        return listeners

    yield sockets
    for listener in made:
        listener.close()


def ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not ipv6(), reason="this machine has no IPv6")


def test_one_address_gives_one_socket(sockets):
    (listener,) = sockets(host="127.0.0.1", port=0)
    with socket.create_connection(listener.getsockname()) as client:
        assert client.getpeername() == listener.getsockname()


@needs_ipv6
@pytest.mark.parametrize("host", ["::", "[::]", "0::0"])
def test_any_address_gives_both_families_on_one_port(sockets, host):
    listeners = sockets(host=host, port=0)
    assert [listener.family for listener in listeners] == [socket.AF_INET6, socket.AF_INET]
    (port,) = {listener.getsockname()[1] for listener in listeners}
    for address in ("127.0.0.1", "::1"):
        socket.create_connection((address, port)).close()
    accepted, peer = listeners[1].accept()
    accepted.close()
    assert peer[0] == "127.0.0.1", "not ::ffff:127.0.0.1"


@needs_ipv6
def test_an_ipv6_address_gives_ipv6_only(sockets):
    (listener,) = sockets(host="[::1]", port=0)
    socket.create_connection(listener.getsockname()[:2]).close()


def test_a_missing_address_family_is_skipped(sockets, monkeypatch):
    real = listen._listening

    def without_ipv6(family, address, backlog):
        if family == socket.AF_INET6:
            raise OSError(listen.errno.EAFNOSUPPORT, "no")
        return real(family, address, backlog)

    monkeypatch.setattr(listen, "_listening", without_ipv6)
    (listener,) = sockets(host="::", port=0)
    assert listener.family == socket.AF_INET
    with pytest.raises(ListenError, match=r"public port \[::1\]:0: address family not supported.*--host, host"):
        sockets(host="::1", port=0)


def test_port_0_is_chosen_again_if_the_other_family_uses_it(sockets, monkeypatch):
    real = listen._all_listening
    calls = []

    def sometimes(addresses, backlog):
        calls.append(addresses)
        if len(calls) < 3:
            raise OSError(listen.errno.EADDRINUSE, "taken")
        return real(addresses, backlog)

    monkeypatch.setattr(listen, "_all_listening", sometimes)
    assert sockets(host="127.0.0.1", port=0)
    assert len(calls) == 3


def test_a_busy_port_error_names_setting_and_fix(sockets):
    (taken,) = sockets(host="127.0.0.1", port=0)
    port = taken.getsockname()[1]
    with pytest.raises(ListenError) as raised:
        sockets(host="127.0.0.1", port=port)
    assert str(raised.value) == (
        f"public port 127.0.0.1:{port}: address already in use; stop the process that uses it, or set another port "
        "(--port, port, WARMROUTE_PORT)"
    )


@pytest.mark.parametrize(
    ("host", "reason"),
    [("192.0.2.1", "cannot assign requested address"), ("no-such-host.invalid", "no such host name")],
)
def test_a_foreign_host_error_names_the_setting(sockets, monkeypatch, host, reason):
    real = socket.getaddrinfo

    def without_network(name, *arguments, **options):
        if name == "no-such-host.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(name, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", without_network)
    with pytest.raises(ListenError) as raised:
        sockets(host=host, port=0)
    assert str(raised.value) == (
        f"public port {host}:0: {reason}; set an address of this machine (--host, host, WARMROUTE_HOST)"
    )


def test_a_unix_socket_in_use_is_refused(sockets, tmp_path):
    path = str(tmp_path / "s")
    (first,) = sockets(uds=path)
    with pytest.raises(ListenError, match=r"a process listens on it; stop that process.*--uds"):
        sockets(uds=path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        first.accept()[0].close()


def test_a_unix_socket_with_a_full_queue_is_in_use(tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as client:
        busy.bind(path)
        busy.listen(0)
        client.connect(path)
        with pytest.raises(ListenError, match="a process listens"):
            claim_unix_path(path)


def test_a_stale_unix_socket_is_replaced(sockets, tmp_path):
    path = str(tmp_path / "s")
    with closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(path)
    assert os.path.exists(path)
    assert sockets(uds=path)[0].getsockname() == path


def test_files_that_are_no_socket_are_left_alone(sockets, tmp_path):
    (tmp_path / "s").write_text("precious")
    with pytest.raises(ListenError, match=r"the file exists and is no socket; remove it.*--uds"):
        sockets(uds=str(tmp_path / "s"))
    assert (tmp_path / "s").read_text() == "precious"
    with pytest.raises(ListenError, match=r"no such file or directory; set another path \(--uds"):
        sockets(uds=str(tmp_path / "missing" / "s"))


def test_only_our_own_socket_file_is_removed(sockets, tmp_path):
    path = str(tmp_path / "s")
    sockets(uds=path)[0].close()
    ours = socket_file(path)
    sockets(uds=path)
    remove_socket_file(ours)
    assert os.path.exists(path), "the file belongs to another gateway"
    remove_socket_file(socket_file(path))
    assert not os.path.exists(path)
    assert socket_file(path) is None
    remove_socket_file(ours)


async def test_every_listener_accepts_connections(sockets, tmp_path):
    class Greeting(asyncio.Protocol):
        unsent_bytes = 0

        def connection_made(self, transport):
            limit.opened(self)
            transport.write(b"hello")
            transport.close()

        def connection_lost(self, exc):
            limit.left(self)

    loop = asyncio.get_running_loop()
    limit = ConnectionLimit(16, loop.time)
    acceptor = Acceptor(loop, Greeting, limit)
    path = str(tmp_path / "s")
    (tcp,), (unix,) = sockets(host="127.0.0.1", port=0), sockets(uds=path)
    listeners = [Listener(loop, acceptor, listener) for listener in (tcp, unix)]
    ways = (asyncio.open_connection(*tcp.getsockname()), asyncio.open_unix_connection(path))
    for way in ways:
        reader, writer = await way
        assert await reader.read() == b"hello"
        writer.close()
    for listener in listeners:
        listener.close()
        listener.close()  # a second close does nothing
    assert limit.statistics() == {"open": 0, "opening": 0, "evicted": 0, "refused": 0}
