"""A gateway process dies after it took over, and the previous one serves again. The tests check the clients' view."""

import asyncio
import os
import socket
import time

import httpx
import pytest

from router.process.takeover.client import TakeoverClient
from router.process.takeover.messages import SuccessorReady, encode
from tests.end_to_end.conftest import Clients
from tests.support.waiting import block_until

pytestmark = pytest.mark.slow

AGAIN = "has died; serving again"


def whole(lines):
    return list(lines)[-2:] == ["data: [DONE]", ""]


def refused(site):
    try:
        socket.create_connection(("127.0.0.1", int(site.public.rpartition(":")[2])), 1).close()
    except ConnectionRefusedError:
        return True
    except TimeoutError:  # while a listener closes, new connections are ignored
        return False
    return False


@pytest.mark.parametrize("after_s", [0.0, 0.2, 1.5])
def test_a_successor_killed_after_it_took_over_costs_only_its_own_requests(site, after_s):
    old = site.first()
    with Clients(site) as clients:
        clients.until_more()
        new = site.gateway()
        new.wait_for("took over")
        time.sleep(after_s)
        new.kill()
        old.wait_for(AGAIN)
        clients.until_more()
    assert len(clients.failures) <= 4  # at most one per client, on the killed process
    assert not any(isinstance(each, httpx.ConnectError | AssertionError) for each in clients.failures), clients.failures
    with httpx.Client() as kept:
        for _ in range(3):
            assert site.complete(kept).headers.get("connection") is None
    assert httpx.get(f"{site.admin}/readyz").status_code == 200
    with Clients(site) as clients:
        site.serving()
        assert old.wait(20) == 0
    assert clients.failures == []


def test_streams_of_the_old_gateway_finish_when_its_successor_is_killed(site):
    old = site.first()
    with site.stream(2) as lines:
        new = site.serving()
        with Clients(site, 2) as clients:
            clients.until_more(5)
            new.kill()
            old.wait_for(AGAIN)
            clients.until_more(5)
        assert len(clients.failures) <= 2
        assert httpx.get(f"{site.admin}/admin/v1/workers/{site.worker}").json()["in_flight"] == 1
        assert whole(lines)
    site.serving()
    assert old.wait(20) == 0
    assert site.complete(httpx).status_code == 200


async def test_a_successor_may_die_at_every_step(site):
    old = site.first("--worker", "http://127.0.0.1:9")
    for step in ("ready", "draining", "following"):
        found = await TakeoverClient.find(site.path)
        if step == "ready":
            found._connection.send(encode(SuccessorReady()))
        else:
            await found.drain()
        if step == "following":
            found.follow(lambda: (site.worker,))
            async with asyncio.timeout(20):
                while not found.drains(site.worker):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        found.listeners.close()
        await found.aclose()
        old.wait_for(AGAIN)
        if step != "following":
            assert site.complete(httpx).status_code == 200
    check_drained(site)  # as the operator had requested from the process that died


def check_drained(site):
    worker = f"{site.admin}/admin/v1/workers/{site.worker}"
    assert httpx.get(worker).json()["state"] == "draining"
    assert httpx.post(f"{worker}/undrain?wait_s=10").json()["state"] == "ready"
    assert site.complete(httpx).status_code == 200


def test_a_successor_that_ends_in_order_does_not_bring_the_old_gateway_back(site):
    old = site.first()
    with site.stream() as lines:
        new = site.serving()
        new.terminate()
        block_until(lambda: refused(site), 20)
        assert old.alive
        assert whole(lines)
    assert (old.wait(20), new.wait(20)) == (0, 0)
    assert refused(site)
    assert AGAIN not in old.tail()


def test_the_second_of_three_gateways_comes_back_not_the_first(site):
    first = site.first()
    with site.stream() as lines:
        second = site.serving()
        third = site.serving()
        third.kill()
        second.wait_for(AGAIN)
        assert site.complete(httpx).headers.get("connection") is None
        assert whole(lines)
    assert first.wait(20) == 0
    assert AGAIN not in first.tail()
    assert second.alive


def test_a_gateway_that_was_taken_over_lingers_and_ends_at_sigterm(site):
    old = site.first()
    new = site.serving()
    began_s = time.monotonic()
    assert old.wait(20) == 0
    lingered_s = time.monotonic() - began_s
    assert lingered_s > 2
    newer = site.serving()
    began_s = time.monotonic()
    new.terminate()
    assert new.wait(20) == 0
    assert time.monotonic() - began_s < lingered_s
    newer.kill()
    block_until(lambda: refused(site), 20)


def test_the_old_gateway_regains_a_unix_socket_and_the_service(site, tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        old = site.serving("--uds", site.uds)
        new = site.serving("--uds", site.uds)
        new.kill()
        while not (message := manager.recv(4096)).startswith(b"MAINPID=%d\n" % old.pid):
            assert not message.startswith(b"STOPPING")
        assert b"READY=1" in message
    with site.by_uds() as client:
        assert client.get("/readyz").status_code == 200
    old.terminate()
    assert old.wait(20) == 0
    assert not os.path.exists(site.uds)


def test_a_start_that_fails_after_it_took_over_gives_the_place_back(site, tmp_path):
    old = site.serving("--uds", site.uds)
    new = site.gateway("--uds", site.uds)
    (tmp_path / f"takeover.sock.{new.pid % 1_000_000}").mkdir()  # where it would listen for the next process
    assert new.wait(20) == 1
    assert "took over" in new.tail()
    old.wait_for(AGAIN)
    with site.by_uds() as client:
        assert client.get("/readyz").status_code == 200
    site.serving("--uds", site.uds)
    assert old.wait(20) == 0
