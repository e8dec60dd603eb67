"""systemd's protocols: descriptors, variables and a datagram socket, and its own tool if it is installed."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time

import httpx
import pytest

from loadtest.fleet.ports import free_ports
from router.process import systemd
from router.process.systemd import Notifier, activated

PROBE = """
import os, sys
from router.process.systemd import activated
from router.requests.front import ListenError
os.environ["LISTEN_PID"] = os.environ.get("LISTEN_PID") or str(os.getpid())
try:
    found = activated(os.environ, os.getpid())
    ports = lambda sockets: [each.getsockname()[1] for each in sockets]
    print(found and (ports(found.public), ports([found.admin] if found.admin else []), found.manager_owned))
except ListenError as error:
    print("error:", error)
"""


def as_service(sockets, **environment):
    """What a process sees that gets `sockets` as descriptors 3, 4, ..."""
    kept = [os.dup(each.fileno()) for each in sockets]
    shell = " ".join(f"{3 + index}<&{descriptor}" for index, descriptor in enumerate(kept))
    try:
        done = subprocess.run(
            ["bash", "-c", f'exec "$@" {shell}', "bash", sys.executable, "-c", PROBE],
            pass_fds=kept,
            env={**os.environ, "LISTEN_FDS": str(len(kept)), **environment},
            capture_output=True,
            text=True,
            timeout=30,
        )
    finally:
        for descriptor in kept:
            os.close(descriptor)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def listening():
    made = []

    def listen():
        made.append(socket.create_server(("127.0.0.1", 0)))
        return made[-1]

    yield listen
    for each in made:
        each.close()


def port(listener):
    return listener.getsockname()[1]


def test_passed_sockets_are_identified_by_name(listening):
    one, two, admin = listening(), listening(), listening()
    seen = as_service([one, admin, two], LISTEN_FDNAMES="public:admin:warmroute.socket")
    assert seen == f"([{port(one)}, {port(two)}], [{port(admin)}], True)"
    assert as_service([one]) == f"([{port(one)}], [], True)"


def test_sockets_for_another_process_are_ignored(listening):
    assert as_service([listening()], LISTEN_PID="1") == "None"
    assert activated({}, os.getpid()) is None
    assert activated({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "0"}, os.getpid()) is None
    assert activated({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "x"}, os.getpid()) is None


def test_unusable_sockets_are_refused(listening, tmp_path):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        assert "does not listen" in as_service([datagrams])
    with open(tmp_path / "file", "w") as file:
        assert "is no socket" in as_service([file])
    assert "no public socket" in as_service([listening()], LISTEN_FDNAMES="admin")
    assert "2 sockets named admin" in as_service([listening() for _ in range(3)], LISTEN_FDNAMES="admin:admin:x")


@pytest.fixture
def manager(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
        received.bind(str(tmp_path / "notify"))
        received.settimeout(5)
        yield received


async def said(manager):
    return (await asyncio.to_thread(manager.recv, 4096)).decode().split("\n")


async def test_the_service_manager_is_notified(manager, monkeypatch):
    monkeypatch.setattr(systemd, "STATUS_S", 0.05)
    ready = 0
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()}, lambda: f"{ready} of 2 workers ready")
    notifier.ready(main_pid=77)
    assert await said(manager) == ["MAINPID=77", "READY=1", "STATUS=0 of 2 workers ready"]
    ready = 2
    assert await said(manager) == ["STATUS=2 of 2 workers ready"]
    notifier.stopping()
    assert await said(manager) == ["STOPPING=1", "STATUS=draining"]
    await notifier.aclose()


async def test_the_event_loop_feeds_the_watchdog(manager):
    environment = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "100000", "WATCHDOG_PID": str(os.getpid())}
    notifier = Notifier(environment, lambda: "well")
    notifier.ready()
    assert await said(manager) == ["READY=1", "STATUS=well"]
    began_s = time.monotonic()
    assert [await said(manager) for _ in range(3)] == [["WATCHDOG=1"]] * 3
    assert 0.1 < time.monotonic() - began_s < 2
    await notifier.aclose()


async def test_no_notification_without_a_notify_socket(tmp_path):
    for environment in ({}, {"NOTIFY_SOCKET": str(tmp_path / "gone")}, {"NOTIFY_SOCKET": "@warmroute-nobody"}):
        notifier = Notifier(environment, lambda: "")
        notifier.ready()
        notifier.stopping()
        await notifier.aclose()


async def test_an_abstract_notify_address_works():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
        received.bind(f"\0warmroute-test-{os.getpid()}")
        received.settimeout(5)
        Notifier({"NOTIFY_SOCKET": f"@warmroute-test-{os.getpid()}"}, lambda: "").stopping()
        assert await said(received) == ["STOPPING=1", "STATUS=draining"]


def test_a_watchdog_of_another_process_is_ignored():
    assert systemd._watchdog_s({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}) == 0
    assert systemd._watchdog_s({"WATCHDOG_USEC": "2000000"}) == 2


@pytest.mark.skipif(shutil.which("systemd-socket-activate") is None, reason="systemd-socket-activate is not installed")
def test_systemd_socket_activate_passes_sockets(manager):
    public = free_ports(2)
    admin = public + 1
    command = [
        "systemd-socket-activate",
        *("-l", f"127.0.0.1:{public}", "-l", f"127.0.0.1:{admin}", "--fdname=public:admin"),
        *("-E", "NOTIFY_SOCKET", "-E", "PYTHONPATH", "-E", "PATH"),
        *(sys.executable, "-P", "-m", "warmroute", "serve", "--worker", "http://127.0.0.1:9"),
    ]
    environment = {**os.environ, "NOTIFY_SOCKET": manager.getsockname()}
    service = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        first = knock(public)  # it waits in the queue until the service, started by it, answers
        assert first.status_code == 200
        assert httpx.get(f"http://127.0.0.1:{admin}/livez").status_code == 200
        manager.settimeout(20)
        assert manager.recv(4096).decode().split("\n")[0] == "READY=1"
        service.terminate()
        messages = manager.recv(4096).decode()
        assert "STOPPING=1" in messages
        assert service.wait(20) == 0
    finally:
        service.kill()
        service.wait()


def knock(public):
    end_s = time.monotonic() + 20
    while True:
        try:
            return httpx.get(f"http://127.0.0.1:{public}/livez", timeout=20)
        except httpx.ConnectError:
            assert time.monotonic() < end_s
            time.sleep(0.05)
