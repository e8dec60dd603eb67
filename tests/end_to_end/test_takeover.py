import contextlib
import os
import signal
import socket
import time

import httpx
import pytest

from loadtest.fleet.ports import free_ports
from tests.end_to_end.conftest import Clients
from tests.support.waiting import block_until

pytestmark = pytest.mark.slow

KEEPS = ("--set", "timeouts.drain_idle_s=60")
"""A gateway keeps an idle connection while another one starts, however long that takes."""


def keeping():
    """Return a client that keeps an idle connection, too; by default it does so for 5 s."""
    return httpx.Client(limits=httpx.Limits(keepalive_expiry=None))


def test_a_stream_outlives_its_gateway(site):
    old = site.first(*KEEPS)
    with keeping() as kept, site.stream() as lines:
        assert site.complete(kept).headers.get("connection") is None
        site.serving(*KEEPS)
        assert old.alive
        answer = site.complete(kept)  # on the connection to the old gateway
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert site.complete(kept).headers.get("connection") is None  # on a connection to the new gateway
        listed = httpx.get(f"{site.admin}/admin/v1/workers/{site.worker}").json()
        assert listed["in_flight"] == 1  # the stream of the old gateway
        drained = httpx.post(f"{site.admin}/admin/v1/workers/{site.worker}/drain?wait_s=1")
        assert (drained.status_code, drained.json()["code"]) == (409, "worker_busy")
        assert list(lines)[-2:] == ["data: [DONE]", ""]
    assert old.wait(20) == 0
    drained = httpx.post(f"{site.admin}/admin/v1/workers/{site.worker}/drain?wait_s=5")
    assert (drained.status_code, drained.json()["in_flight"]) == (200, 0)


def test_what_an_operator_drained_stays_drained(site):
    site.first("--worker", "http://127.0.0.1:9")
    drain = f"/admin/v1/workers/{site.worker}"
    assert httpx.post(f"{site.admin}{drain}/drain").status_code == 200
    site.serving("--worker", "http://127.0.0.1:9", "--set", "timeouts.takeover_ready_s=2")
    assert httpx.get(f"{site.admin}{drain}").json()["state"] == "draining"
    assert httpx.post(f"{site.admin}{drain}/undrain?wait_s=10").json()["state"] == "ready"


def test_a_worker_drained_after_a_takeover_gets_nothing_from_the_old_gateway(site):
    no_wait = ("--set", "timeouts.queue_s=0.1", *KEEPS)
    old = site.first(*no_wait)
    with keeping() as kept:
        assert site.complete(kept).status_code == 200
        site.serving(*no_wait)
        drained = httpx.post(f"{site.admin}/admin/v1/workers/{site.worker}/drain?wait_s=5")
        assert drained.status_code == 200  # from now on the worker may be stopped
        assert old.alive
        answer = site.complete(kept)  # by the old gateway, on the connection that it keeps
        assert (answer.status_code, answer.headers["connection"]) == (503, "close")
    assert old.wait(20) == 0


def test_a_successor_that_fails_leaves_the_running_gateway_as_it_was(site):
    running = site.first()
    elsewhere = site.gateway("--port", str(free_ports(1)))
    assert elsewhere.wait(20) == 1
    assert "configured for 127.0.0.1:" in elsewhere.tail()
    lonely = site.gateway("--set", "timeouts.takeover_ready_s=0.5", worker="127.0.0.1:9")
    assert lonely.wait(20) == 1
    assert "no worker is ready after 0.5 s (timeouts.takeover_ready_s)" in lonely.tail()
    killed = site.gateway(worker="127.0.0.1:9")
    killed.wait_for("worker state|worker not|127.0.0.1:9")
    killed.kill()
    running.wait_for("ended before it was ready; this one keeps serving")
    port = int(site.public.rpartition(":")[2])
    with httpx.Client() as client:
        for _ in range(20):
            assert site.complete(client).headers.get("connection") is None
    assert socket.create_connection(("127.0.0.1", port)).close() is None
    assert running.alive


def test_a_gateway_replaces_itself_at_sigusr2(site):
    old = site.first()
    handed = r"handed over drain_s=\S+ carried=\"(?P<said>[^\"]+)\""
    learns = r"learned_again=\"worker caches, .*workers=(?P<workers>\d+)$"
    took = rf"took over pid=(?P<pid>\d+) carried=\"(?P<got>[^\"]+)\" {learns}"
    found = {}
    with Clients(site, 1) as clients:
        os.kill(old.pid, signal.SIGUSR2)
        while len(found) < 4:  # two processes write, so the lines come in any order
            line = old.wait_for(f"{handed}|{took}")
            found |= {name: text for name, text in line.groupdict().items() if text is not None}
        assert old.wait(20) == 0
    assert found["said"] == "listening sockets, desired state with its revisions, drained workers"
    assert (int(found["pid"]), found["got"], found["workers"]) == (old.pid, found["said"], "1")
    assert clients.failures == []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.connect(site.path)
        successor = int.from_bytes(door.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], "little")
    os.kill(successor, signal.SIGTERM)
    block_until(lambda: not os.path.exists(site.path), 20)


def test_a_unix_socket_is_taken_over_with_its_file(site):
    old = site.serving("--uds", site.uds)
    elsewhere = site.gateway()
    assert elsewhere.wait(20) == 1
    assert f"public port at {site.uds}" in elsewhere.tail()
    new = site.serving("--uds", site.uds)
    assert old.wait(20) == 0
    with site.by_uds() as client:
        assert client.get("/readyz").status_code == 200
    new.terminate()
    assert new.wait(20) == 0
    assert not os.path.exists(site.uds)


def emptied(manager):
    """Read all waiting messages. For a manager that does not read, the kernel keeps ten messages and drops further
    ones.
    """
    manager.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            manager.recv(4096)
    manager.settimeout(20)


def test_only_the_new_process_notifies_the_service_manager(site, tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        old = site.first()
        assert manager.recv(4096).startswith(b"READY=1")
        new = site.gateway()
        while b"MAINPID" not in (message := manager.recv(4096)):
            assert message.startswith((b"WATCHDOG=1", b"STATUS="))
        assert message.split(b"\n") == [b"MAINPID=%d" % new.pid, b"READY=1", b"STATUS=1 of 1 workers ready"]
        assert old.wait(20) == 0
        emptied(manager)
        new.terminate()
        heard = [manager.recv(4096)]
        while not heard[-1].startswith(b"STOPPING=1"):
            heard.append(manager.recv(4096))
        assert set(heard[:-1]) <= {b"WATCHDOG=1"}


def test_sigterm_turns_readiness_off_and_accepts_for_a_while(site):
    gateway = site.first("--set", "timeouts.drain_delay_s=1.5")
    began_s = time.monotonic()
    gateway.terminate()
    block_until(lambda: httpx.get(f"{site.public}/readyz").status_code != 200, 10)
    assert httpx.get(f"{site.public}/readyz").json() == {"status": "draining"}
    assert httpx.get(f"{site.admin}/readyz").status_code == 503
    answer = site.complete(httpx)
    assert (answer.status_code, answer.headers["connection"]) == (200, "close")
    assert gateway.wait(20) == 0
    assert time.monotonic() - began_s > 1.5
