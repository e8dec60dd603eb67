import asyncio
import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.worker import parse_endpoint
from router.admin import watch
from router.admin.app import build_admin
from router.admin.http.server import AdminServer
from router.admin.system import TakeoverState
from router.admin.watch import Known, Watch
from router.config.model import Config
from router.placement.load.fleet_load import WorkerLoads
from router.process.listeners import admin_socket
from router.security.token import AdminTokens, TokenSettings
from tests.router.admin.test_roles import LINES, token_of
from tests.support.waiting import eventually, iterations

WORKERS = "/admin/v1/workers?watch=true"
DECISIONS = "/admin/v1/decisions?watch=true"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(watch, "INTERVAL_S", 0.01)


@pytest.fixture
async def serve(system):
    started = []

    async def serve(tokens=None, **headers):
        server = AdminServer(build_admin(system, tokens), admin_socket(Config(admin_port=0)), Config())
        await server.start()
        client = httpx.AsyncClient(base_url=f"http://{server.address}", headers=headers, timeout=10)
        started.append((client, server))
        return client

    yield serve
    for client, server in started:
        await client.aclose()
        await server.aclose()


class Events:
    def __init__(self, response):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        self._lines = response.aiter_lines()

    async def next(self):
        lines = []
        async with asyncio.timeout(10):
            async for line in self._lines:
                if line:
                    lines.append(line)
                elif lines:
                    break
        if not lines:
            return None
        if lines[0].startswith(":"):
            return None, lines[0]
        return lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: "))

    async def until(self, name):
        while (event := await self.next()) is not None:
            if event[0] == name:
                return event[1]
        raise AssertionError(f"the stream ended without {name}")


async def test_workers_come_as_a_snapshot_and_then_what_changes(serve, system):
    system.join("http://a:1")
    client = await serve()
    async with client.stream("GET", WORKERS) as response:
        events = Events(response)
        snapshot = await events.until("snapshot")
        assert [worker["id"] for worker in snapshot["workers"]] == ["a:1"]
        assert snapshot == (await client.get("/admin/v1/workers")).json()
        system.join("http://a:2")
        assert (await events.until("added"))["id"] == "a:2"
        system.fleet.drain("a:1")
        assert (await events.until("changed"))["state"] == "draining"
        system.fleet.remove("a:2")
        assert await events.until("removed") == {"id": "a:2"}


async def test_decisions_come_in_their_order_and_again_when_they_end(serve, system):
    system.join("http://a:1")
    system.join("http://a:2")
    system.serve("r0")
    client = await serve()
    async with client.stream("GET", DECISIONS) as response:
        events = Events(response)
        assert [one["request_id"] for one in (await events.until("snapshot"))["decisions"]] == ["r0"]
        tickets = [system.core.dispatcher.dispatch(system.request(name), system.clock_s) for name in ("r1", "r2")]
        added = [await events.until("added") for _ in tickets]
        assert [(one["request_id"], one["outcome"]) for one in added] == [("r1", "running"), ("r2", "running")]
        assert all([each["worker"] for each in one["candidates"]] == [one["worker"]] for one in added)
        system.core.tickets.cancelled(tickets[0], system.clock_s)
        changed = await events.until("changed")
        assert (changed["request_id"], changed["outcome"]) == ("r1", "cancelled")


async def test_a_watch_of_decisions_is_filtered(serve, system):
    system.join("http://a:1")
    client = await serve()
    async with client.stream("GET", DECISIONS + "&request_id=wanted") as response:
        events = Events(response)
        assert (await events.until("snapshot"))["decisions"] == []
        for name in ("other", "wanted"):
            system.serve(name)
        assert (await events.until("added"))["request_id"] == "wanted"


async def test_a_silent_stream_has_heartbeats(serve, monkeypatch):
    monkeypatch.setattr(watch, "HEARTBEAT_S", 0.02)
    client = await serve()
    async with client.stream("GET", WORKERS) as response:
        events = Events(response)
        assert (await events.next())[0] == "snapshot"
        assert await events.next() == (None, ": heartbeat")


ENDS = [({"accepting": False}, "a shutdown has begun"), ({"takeover_state": TakeoverState.DONE}, "another process")]


@pytest.mark.parametrize(("change", "reason"), ENDS)
async def test_a_stream_ends_with_the_service(serve, system, change, reason):
    client = await serve()
    async with client.stream("GET", WORKERS) as response:
        events = Events(response)
        assert (await events.next())[0] == "snapshot"
        for name, value in change.items():
            setattr(system, name, value)
        assert reason in (await events.until("end"))["reason"]
        assert await events.next() is None


async def test_a_client_that_reads_slowly_is_cut_and_receives_the_reason(serve, system, monkeypatch):
    monkeypatch.setattr(watch, "SLOW_S", -1.0)  # every event takes longer
    client = await serve()
    async with client.stream("GET", WORKERS) as response:
        events = Events(response)
        assert (await events.next())[0] == "snapshot"
        name, data = await events.next()
        assert (name, data["reason"]) == ("cut", "slow")
        assert await events.next() is None


async def test_a_client_that_does_not_read_makes_the_server_wait(serve, system, monkeypatch):
    large = {f"name{number}": "x" * 1_000_000 for number in range(20)}
    system.fleet.add(parse_endpoint("http://a:1"), system.clock_s, large)
    client = await serve()
    reads = []
    original = WorkerLoads.shown
    monkeypatch.setattr(WorkerLoads, "shown", lambda *given: (reads.append(1), original(*given))[1])
    async with client.stream("GET", WORKERS) as response:
        for number in range(5):
            system.fleet.add(parse_endpoint(f"http://b:{number + 1}"), system.clock_s)
        await eventually(lambda: len(reads) >= 2)
        await iterations(300)
        assert len(reads) == 2  # the snapshot, and the read whose first event waits
        events = Events(response)
        added = [await events.until("added") for _ in range(5)]
        assert [worker["id"] for worker in added] == [f"b:{number + 1}" for number in range(5)]


async def test_the_number_of_watchers_is_limited_and_a_place_is_given_back(serve, monkeypatch, problem):
    monkeypatch.setattr(watch, "MOST_WATCHERS", 1)
    client = await serve()
    async with client.stream("GET", WORKERS) as response:
        assert (await Events(response).next())[0] == "snapshot"
        refused = await client.get(WORKERS)
        assert problem(refused, 429)[0] == "too_many_watchers"
        assert refused.headers["retry-after"] == "10"
        assert (await client.get("/admin/v1/workers")).status_code == 200
    async with asyncio.timeout(10):
        while True:
            async with client.stream("GET", DECISIONS) as again:
                if again.status_code == 200:
                    assert (await Events(again).next())[0] == "snapshot"
                    break


async def test_a_watch_needs_a_token_as_the_list_does(serve):
    client = await serve(AdminTokens(TokenSettings(None, None, LINES)))
    assert (await client.get(WORKERS)).status_code == 401
    headers = {"authorization": f"Bearer {token_of('grafana')}"}
    async with client.stream("GET", WORKERS, headers=headers) as response:
        assert (await Events(response).next())[0] == "snapshot"


async def test_a_list_that_cannot_be_read_ends_the_stream(serve, system, monkeypatch):
    client = await serve()
    async with client.stream("GET", WORKERS) as response:
        events = Events(response)
        assert (await events.next())[0] == "snapshot"
        monkeypatch.setattr(WorkerLoads, "shown", lambda *given: 1 / 0)
        assert "internal error" in (await events.until("end"))["reason"]


async def test_head_and_a_cursor_are_no_stream(serve, problem):
    client = await serve()
    assert (await client.head(WORKERS)).status_code == 200
    assert "cursor" in problem(await client.get(DECISIONS + "&cursor=W10"), 422)[1]
    assert problem(await client.get("/admin/v1/workers?watch=yes"), 422)[0] == "invalid_value"


LOG = Watch("entries", "id", ignored=frozenset({"age"}), newest_first=True)
LIST = Watch("entries", "id", ignored=frozenset({"age"}))
STATES = st.lists(st.dictionaries(st.integers(0, 5), st.integers(0, 2), max_size=6), min_size=2, max_size=6)


@given(STATES)
def test_events_bring_a_copy_of_a_list_to_the_present_state(states):
    def entries(state):
        return [{"id": key, "value": value, "age": value} for key, value in state.items()]

    known, copy = Known(LIST, entries(states[0])), dict(states[0])
    for state in states[1:]:
        for name, entry in known.update(entries(state), more=False):
            if name == "removed":
                del copy[entry["id"]]
            else:
                assert (entry["id"] in copy) is (name == "changed")
                copy[entry["id"]] = entry["value"]
        assert copy == state


@given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.integers(1, 4))
def test_events_of_a_log_are_each_new_entry_once_in_order(joined, most):
    length, received = 3, []

    def newest():
        return [{"id": number, "age": length} for number in range(length, max(0, length - most), -1)]

    known = Known(LOG, newest())
    for number in joined:
        length += number
        events = list(known.update(newest(), more=length > most))
        assert [name for name, _ in events if name != "added"] == (["skipped"] if number >= most else [])
        received += [entry["id"] for name, entry in events if name == "added"]
    assert received == sorted(set(received))
    assert set(received) >= set(range(length, max(3, length - min(joined[-1], most)), -1))
