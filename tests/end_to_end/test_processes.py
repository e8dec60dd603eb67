import functools
import http.client
import itertools
import json
import os
import signal
from collections import Counter
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

pytestmark = pytest.mark.slow


NUMBERS = itertools.count()


class Clients:
    """Keep-alive connections to the public port, one request at a time on each. All of them send one prompt, which no
    others have sent.
    """

    def __init__(self, system, count: int) -> None:
        self.system, self.number = system, next(NUMBERS)
        parts = urlsplit(system.url)
        self.connections = [http.client.HTTPConnection(parts.hostname, parts.port, timeout=20) for _ in range(count)]
        for connection in self.connections:
            connection.connect()

    def body(self, **fields) -> bytes:
        messages = [{"role": "user", "content": f"{self.number}. Name three rivers. " * 20}]
        return json.dumps({"model": self.system.model, "messages": messages, "max_tokens": 2, **fields}).encode()

    def ask(self) -> list[int]:
        """Send one request on each connection, one after the other."""
        statuses = []
        for connection in self.connections:
            connection.request("POST", "/v1/chat/completions", self.body(), {"content-type": "application/json"})
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
        return statuses

    def stream(self, index: int, tokens: int) -> http.client.HTTPResponse:
        """Start a stream and read its first event."""
        body = self.body(stream=True, max_tokens=tokens, ignore_eos=True)
        self.connections[index].request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        response = self.connections[index].getresponse()
        assert response.status == 200
        assert response.readline().startswith(b"data:")
        return response

    def close(self) -> None:
        for connection in self.connections:
            connection.close()


def of_two(start, serve_flags=(), **settings):
    """Start a fleet behind two gateway processes, both of which serve."""
    system = start(serve_flags=("--processes", "2", *serve_flags), **settings)
    system.wait_for(lambda: processes_ready(system) == 2, what="both processes")
    return system


@pytest.fixture
def two(start):
    """Return a function that starts a fleet behind two gateway processes, both of which serve."""
    return functools.partial(of_two, start)


@pytest.fixture(scope="module")
def unchanged_two(start_shared):
    return of_two(start_shared)


@pytest.fixture
def shared_two(unchanged_two):
    """A fleet behind two gateway processes, shared by the tests that leave it unchanged. No client is connected."""
    unchanged_two.wait_for(lambda: not unchanged_two.metric("warmroute_client_connections"), what="no clients")
    return unchanged_two


@pytest.fixture
def clients():
    opened = []

    def connect(system, count: int) -> Clients:
        opened.append(Clients(system, count))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


def processes_ready(system) -> int:
    answer = system.admin.get("/readyz")
    return answer.json()["processes_ready"] if answer.status_code == 200 else 0


def children(system) -> list[psutil.Process]:
    return sorted(psutil.Process(system.running.gateway.pid).children(), key=lambda child: child.pid)


def deciders(system, last: int) -> Counter:
    listed = system.admin.get(f"/admin/v1/decisions?limit={last}").json()["decisions"]
    return Counter(decision["process"] for decision in listed)


def test_metrics_are_the_sum_and_decisions_come_newest_first(two, clients):
    system = two()
    assert clients(system, 6).ask() == [200] * 6
    assert system.metric("warmroute_requests_total") == 6
    assert system.metric("warmroute_request_duration_seconds_count") == 6
    assert system.metric("warmroute_decisions_total") == 6
    diagnosis = system.admin.get("/admin/v1/diagnosis").json()
    assert (diagnosis["requests"], diagnosis["findings"]) == (6, [])
    rows = system.admin.get("/admin/v1/fleet").json()["rows"]
    assert {row["id"] for row in rows} == set(system.workers()) and {row["in_flight"] for row in rows} == {0}
    assert system.admin.get("/admin/v1/traffic").json()["next"] is None
    assert system.admin.get("/admin/v1/prefixes").status_code == 200
    asked = system.admin.post("/admin/v1/what-if", json={"rule": "round_robin"}).json()
    logged = system.admin.get("/admin/v1/decisions?limit=10000").json()["decisions"]
    assert asked["decisions"] == asked["kept"] == len(logged) > 0
    assert system.admin.post("/admin/v1/what-if", json={"rule": "nothing"}).status_code == 422
    assert system.admin.get("/admin/v1/whoami").json()["role"] == "admin"
    assert system.metric("warmroute_processes") == 2
    assert system.metric("warmroute_process_restarts_total") == 0
    listed = system.admin.get("/admin/v1/decisions?limit=5").json()["decisions"]
    assert len(listed) == 5
    assert [decision["at"] for decision in listed] == sorted((d["at"] for d in listed), reverse=True)
    (worker, *_) = system.workers().values()
    assert worker["candidates"][0]["predicted_cached"]["over"] == 0


def test_one_process_finds_the_prefix_that_another_placed(shared_two, clients):
    system = shared_two
    asked = clients(system, 8)
    asked.ask()
    system.wait_idle()
    system.wait_for(lambda: set(asked.ask()) == {200} and len(deciders(system, 8)) == 2, what="both processes")
    listed = system.admin.get("/admin/v1/decisions?limit=8").json()["decisions"]
    assert {decision["worker"] for decision in listed} <= {d["worker"] for d in listed if d["predicted_cached_tokens"]}
    assert all(decision["predicted_cached_tokens"] > 0 for decision in listed)


def test_every_process_finds_the_worker_of_a_stored_response(shared_two, clients):
    system = shared_two
    asked = clients(system, 8)
    made = httpx.post(f"{system.url}/v1/responses", json={"model": system.model, "input": "x", "max_output_tokens": 2})
    assert made.status_code == 200
    follow_up = {"model": system.model, "input": "y", "previous_response_id": made.json()["id"]}
    for connection in asked.connections:
        connection.request("POST", "/v1/responses", json.dumps(follow_up), {"content-type": "application/json"})
        connection.getresponse().read()
    listed = system.admin.get("/admin/v1/decisions?limit=9").json()["decisions"]
    assert len({decision["worker"] for decision in listed}) == 1
    assert {decision["process"] for decision in listed} == {0, 1}


def test_changes_reach_every_process_and_those_that_start_later(two, clients):
    system = two()
    first, second = system.workers()
    chosen = system.admin.put("/admin/v1/policy", json={"rule": "lpwl"})
    assert (chosen.status_code, chosen.json()["rule"]) == (200, "lpwl")
    assert system.admin.post(f"/admin/v1/workers/{first}/drain").json()["state"] == "draining"
    asked = clients(system, 8)
    assert set(asked.ask()) == {200}
    assert_decided_by_both(system, 8, policy="lpwl", worker=second)
    asked.close()
    for child in children(system):
        child.kill()
    system.wait_for(lambda: system.metric("warmroute_process_restarts_total") == 2, what="restarts")
    system.wait_for(lambda: processes_ready(system) == 2, what="both processes")
    assert set(clients(system, 8).ask()) == {200}
    assert_decided_by_both(system, 8, policy="lpwl", worker=second)
    assert system.workers()[first]["state"] == "draining"


def assert_decided_by_both(system, count: int, policy: str, worker: str) -> None:
    listed = system.admin.get(f"/admin/v1/decisions?limit={count}").json()["decisions"]
    assert {(d["policy"], d["worker"]) for d in listed} == {(policy, worker)}
    assert {d["process"] for d in listed} == {0, 1}


def test_a_waiting_drain_counts_the_requests_of_every_process(two, clients):
    system = two(worker_flags=("--time-scale", "1"))
    asked = clients(system, 4)
    streams = [asked.stream(index, 1_500) for index in range(4)]
    busy = {name: worker["in_flight"] for name, worker in system.workers().items()}
    assert sum(busy.values()) == 4
    answer = system.admin.post(f"/admin/v1/workers/{next(iter(busy))}/drain?wait_s=1")
    assert (answer.status_code, answer.json().get("code")) == (409, "worker_busy")
    assert [ended(stream) for stream in streams] == ["done"] * 4
    for name in busy:
        answer = system.admin.post(f"/admin/v1/workers/{name}/drain?wait_s=9")
        assert (answer.status_code, answer.json()["in_flight"]) == (200, 0)
        assert system.admin.post(f"/admin/v1/workers/{name}/undrain?wait_s=9").json()["state"] == "ready"


def test_a_worker_is_added_and_removed_in_all_processes(shared_two):
    system = shared_two
    added = system.admin.post("/admin/v1/workers", json={"url": "http://127.0.0.1:9"})
    assert (added.status_code, added.headers["location"]) == (201, "/admin/v1/workers/127.0.0.1%3A9")
    assert system.admin.get("/admin/v1/workers/127.0.0.1:9").json()["id"] == "127.0.0.1:9"
    assert system.admin.delete("/admin/v1/workers/127.0.0.1:9").status_code == 204
    assert system.admin.get("/admin/v1/workers/127.0.0.1:9").status_code == 404
    explained = system.admin.post("/admin/v1/explain", json={"body": {"model": system.model, "messages": []}})
    assert explained.status_code in (200, 422)
    chat = {"model": system.model, "messages": [{"role": "user", "content": "Name a river."}], "seed": 7}
    probed = system.admin.post("/v1/routing/probe", json=chat)
    assert probed.status_code == 200, probed.text
    assert probed.json()["pool"] == {"pending_requests": 0, "pending_input_tokens": 0}
    assert system.admin.get("/admin/v1/config").json()["processes"] == 2


def test_a_killed_process_breaks_only_its_own_streams(two, clients):
    system = two(worker_flags=("--time-scale", "1"))
    asked = clients(system, 4)
    streams = [asked.stream(index, 300) for index in range(4)]
    assert deciders(system, 4) == {0: 2, 1: 2}
    assert sum(system.loads("running_requests")) == 4
    victim = children(system)[0]
    victim.kill()
    ends = [ended(stream) for stream in streams]
    assert Counter(ends) == {"done": 2, "broken": 2}
    system.wait_for(lambda: processes_ready(system) == 2, what="the new process")
    system.wait_for(lambda: not any(system.loads("running_requests")), what="an empty ledger")
    assert victim.pid not in [child.pid for child in children(system)]
    assert system.metric("warmroute_process_restarts_total") == 1
    asked.close()
    assert set(clients(system, 8).ask()) == {200}
    assert len(deciders(system, 8)) == 2


def ended(stream: http.client.HTTPResponse) -> str:
    try:
        text = stream.read()
    except (http.client.IncompleteRead, ConnectionError):
        return "broken"
    return "done" if text.rstrip().endswith(b"data: [DONE]") else "broken"


def test_a_watch_shows_the_decisions_of_all_processes_and_sigterm_lets_streams_finish(two, clients):
    system = two(worker_flags=("--time-scale", "1"))
    with system.admin.stream("GET", "/admin/v1/decisions?watch=true") as response:
        lines = response.iter_lines()

        def until(name):
            for line in lines:
                if line == f"event: {name}":
                    return json.loads(next(lines).removeprefix("data: "))
            raise AssertionError(f"the stream ended without {name}")

        assert until("snapshot")["decisions"] == []
        asked = clients(system, 4)
        assert set(asked.ask()) == {200}
        assert {until("added")["process"] for _ in range(4)} == {0, 1}
        streams = [asked.stream(index, 100) for index in range(2)]
        gone = children(system)
        system.running.gateway.terminate()
        assert until("end")["reason"] == "a shutdown has begun"
    assert [ended(stream) for stream in streams] == ["done", "done"]
    assert system.running.gateway.wait(10) == 0
    assert not any(child.is_running() for child in gone)


def test_a_second_signal_ends_all_processes_at_once(two, clients):
    system = two(worker_flags=("--time-scale", "5"))
    asked = clients(system, 2)
    streams = [asked.stream(index, 2_000) for index in range(2)]
    gone = children(system)
    system.running.gateway.terminate()
    system.wait_for(lambda: not listening(system), what="a closed port")
    system.running.gateway.terminate()
    assert [ended(stream) for stream in streams] == ["broken", "broken"]
    _, alive = psutil.wait_procs(gone, 5)
    assert not alive


def listening(system) -> bool:
    with suppress(httpx.TransportError):
        httpx.get(f"{system.url}/livez", timeout=1)
        return True
    return False


def test_a_killed_supervisor_leaves_no_process_behind(two):
    system = two()
    gone = children(system)
    os.kill(system.running.gateway.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(gone, 5)
    assert not alive
    assert not listening(system)
