"""A day of a whole fleet: the compose file's processes, with clients that never stop, and what may happen to them.

No request may fail but those in flight on a gateway that is killed. After each event the share of cached prompt tokens
returns.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import pytest

from tests.support.chatting import Ask, Chatting, cached_share, in_the_background
from tests.support.compose import COMPOSE, ComposeProcesses, compose_config, redis_password, secret
from tests.support.dnsmasq import Dnsmasq
from tests.support.waiting import block_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.skipif(not COMPOSE.exists(), reason="Docker Compose is not installed: run `make deploy-env`"),
]
PROGRAMS = ("dnsmasq", "haproxy", "redis-server", "redis-cli")
GATEWAYS = ("gateway-1", "gateway-2")
FIXED = ("worker-1", "worker-2", "worker-3", "worker-4")
FROM_FILE, FROM_DNS, SELF_REGISTERED = "worker-in-file", "worker-in-dns", "sidecar"
REDIS_PAUSE_S = float(os.environ.get("DAY_REDIS_PAUSE_S", "10"))
CLIENTS, WINDOW = 6, 60
NEAR = 0.02
BACK_S = 10.0
"""The cached share is back in this time after each event."""


class Day:
    """The fleet, its clients, and what has been measured."""

    def __init__(self, folder) -> None:
        self.file = folder / "workers.json"
        self.file.write_text("[]")
        self.dns = Dnsmasq(folder, host="127.0.0.2")
        names = ("redis", *FIXED, *GATEWAYS, "haproxy")
        self.fleet = ComposeProcesses(self._config(), names, folder)
        self.url = f"http://{self.fleet.addresses['haproxy']}:8000"
        self.admin = {name: f"http://{self.fleet.addresses[name]}:8001" for name in GATEWAYS}

    def _config(self):
        """Return the compose file with two more workers, and gateways that look for them in a file and in DNS."""
        config = copy.deepcopy(compose_config("--profile=sidecar"))
        services = config["services"]
        services |= {name: copy.deepcopy(services["worker-1"]) for name in (FROM_FILE, FROM_DNS)}
        for name in GATEWAYS:
            services[name]["command"] += [
                f"--set=discovery.sources.lab.file.path={self.file}",
                "--set=discovery.sources.rack.dns.name=vllm.test",
                "--set=discovery.sources.rack.dns.port=9001",
                f"--set=discovery.sources.rack.dns.nameservers={self.dns.server}",
            ]
        return config

    def start(self) -> None:
        self.dns.has(vllm=[self.fleet.addresses["worker-4"]])
        self.dns.start()
        self.fleet.start()
        block_until(lambda: httpx.get(f"{self.url}/readyz").status_code == 200, 60)
        self.until_ready(*FIXED)
        self.until_together()
        self.model = httpx.get(f"{self.url}/v1/models").json()["data"][0]["id"]

    def stop(self) -> None:
        self.fleet.stop()
        self.dns.stop()

    def place(self, worker: str) -> str:
        return f"{self.fleet.addresses[worker]}:{8080 if worker == SELF_REGISTERED else 9001}"

    def ask(self, gateway: str, path: str, method: str = "GET", **options) -> httpx.Response:
        """Call a gateway's admin API."""
        token = {"authorization": f"Bearer {secret('admin-token')}"}
        return httpx.request(method, f"{self.admin[gateway]}/admin/v1{path}", headers=token, timeout=70, **options)

    def change(self, gateway: str, path: str, document: object) -> None:
        """Put a document; the change must reach the whole fleet."""
        changed = self.ask(gateway, path, "PUT", json=document)
        assert changed.is_success, changed.text
        assert changed.headers["x-warmroute-shared"] == "fleet"

    def decides(self, gateway: str, policy: str) -> bool:
        request_id = uuid.uuid4().hex
        body = {"model": self.model, "prompt": "a b c", "max_tokens": 1}
        url = f"http://{self.fleet.addresses[gateway]}:8000/v1/completions"
        sent = httpx.post(url, json=body, headers={"x-request-id": request_id}, timeout=10)
        assert sent.is_success, sent.text
        (decision,) = self.ask(gateway, f"/decisions?request_id={request_id}").json()["decisions"]
        return decision["policy"] == policy

    def redis(self, *words: str) -> str:
        command = ["redis-cli", "-h", self.fleet.addresses["redis"], *words]
        login = {**os.environ, "REDISCLI_AUTH": redis_password()}
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10, env=login).stdout.strip()

    def until_ready(self, *workers: str) -> None:
        """Wait until both gateways know what each of these workers has cached."""

        def known(gateway, worker):
            document = self.ask(gateway, f"/workers/{self.place(worker)}").json()
            candidates = document.get("candidates", ())
            return document.get("state") == "ready" and [each["residency"] for each in candidates] == ["exact"]

        block_until(lambda: all(known(gateway, worker) for gateway in GATEWAYS for worker in workers), 60)

    def until_together(self, within_s: float = 60.0) -> None:
        """Wait until each gateway sees the other one through Redis."""

        def together(gateway):
            answer = self.ask(gateway, "/replicas").json()
            return not answer["alone"] and len(answer["replicas"]) == len(GATEWAYS)

        block_until(lambda: all(map(together, GATEWAYS)), within_s)

    def restart(self, service: str) -> None:
        self.fleet.processes[service].terminate()
        assert self.fleet.processes[service].wait(60) == 0
        self.fleet.start(service)

    def restart_drained(self, worker: str) -> None:
        """Restart a worker as docs/how-to/roll-out-without-a-lost-request.md says, with each gateway."""
        for gateway in GATEWAYS:
            drained = self.ask(gateway, f"/workers/{self.place(worker)}/drain?wait_s=60", "POST")
            assert drained.is_success, drained.text
        self.restart(worker)
        for gateway in GATEWAYS:
            undrained = self.ask(gateway, f"/workers/{self.place(worker)}/undrain?wait_s=60", "POST")
            assert undrained.is_success, undrained.text

    def until_taken(self, gateway: str) -> None:
        """Wait until HAProxy sends requests to a gateway."""
        up = f"http://{self.fleet.addresses[gateway]}:8000/readyz"
        block_until(lambda: httpx.get(up).status_code == 200, 60)
        block_until(lambda: httpx.get(f"{self.url}/readyz").headers["x-gateway"] == gateway, 60)


@pytest.fixture
def day(tmp_path):
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    day = Day(tmp_path)
    try:
        day.start()
        yield day
    finally:
        day.stop()


@pytest.mark.timeout(600)
def test_no_request_fails_on_a_day_of_faults_and_changes(day):
    with Chatting(day.url, day.model, CLIENTS).running() as clients:
        judge = Judge(clients)
        judge.learn()
        judge.during(day, a_gateway_is_killed, may_retry=True)
        for event in (workers_come, a_policy_changes, redis_pauses, redis_is_flushed, all_restart):
            judge.during(day, event)
        # It closes idle connections, on which a client may be about to send.
        judge.during(day, haproxy_restarts, may_retry=True)
    print(*judge.lines, sep="\n")
    assert judge.problems == []


class Judge:
    """Judges each event: no request failed, not even one that was repeated, and the cached share is back in time."""

    def __init__(self, clients: Chatting) -> None:
        self._clients = clients
        self._share = 0.0
        self.lines: list[str] = []
        self.problems: list[str] = []

    def learn(self) -> None:
        """Measure the share before anything happens."""
        self._share = cached_share(self._window(time.monotonic() + 5, 0.0)[1])
        self.lines.append(f"cached share {self._share:.3f}")
        assert self._share > 0.9
        assert {ask.server for ask in self._clients.asks} == set(GATEWAYS)

    def during(self, day: Day, event: Callable[[Day], Killed | None], may_retry: bool = False) -> None:
        """Let it happen, and judge what the clients have seen meanwhile and shortly after."""
        name, began_s, first = event.__name__, time.monotonic(), len(self._clients.asks)
        killed = event(day)
        took_s = time.monotonic() - began_s
        back_s, window = self._window(time.monotonic(), self._share - NEAR)
        asks = self._clients.asks[first:]
        failed = [ask for ask in asks if ask.error is not None]
        retried = [ask for ask in asks if ask.retries]
        self.lines.append(
            f"{name}: {took_s:.1f} s, {len(asks)} requests, {len(failed)} failed, {len(retried)} retried, "
            f"cached share {cached_share(window):.3f} from {back_s:.1f} s on"
        )
        self.problems += [
            f"{name}: {ask.server}: {ask.error}" for ask in failed if killed is None or not killed.explains(ask)
        ]
        if (retried and not may_retry) or cached_share(window) < self._share - NEAR:
            self.problems.append(self.lines[-1])

    def _window(self, since_s: float, wanted: float) -> tuple[float, list[Ask]]:
        """Return the first requests with the wanted share, and when they begin, in seconds from `since_s`.

        If there are none, return the last ones that begin in time.
        """
        for at in itertools.count():
            while len(asks := self._clients.later(since_s)[at : at + WINDOW]) < WINDOW:
                time.sleep(0.05)
            began_s = asks[0].began_s - since_s
            if cached_share(asks) >= wanted or began_s > BACK_S:
                return began_s, asks
        raise AssertionError("unreachable")


@dataclass(frozen=True, slots=True)
class Killed:
    server: str
    at_s: float

    def explains(self, ask: Ask) -> bool:
        """Whether a request failed because it was in flight there. A request that is not streamed is repeated."""
        in_flight = ask.server == self.server and ask.began_s < self.at_s < ask.ended_s
        return in_flight and ask.streamed and not ask.silent


def a_gateway_is_killed(day: Day) -> Killed:
    """Streams in flight on it fail, and each shows it. The other requests in flight there are repeated."""
    asks = [Ask(streamed=number % 2 == 0) for number in range(16)]
    threads = in_the_background(day.url, day.model, asks, tokens=300)
    for ask in asks:
        if ask.streamed:
            assert ask.started.wait(30)
    killed = Killed("gateway-1", time.monotonic())
    day.fleet.processes["gateway-1"].kill()
    for thread in threads:
        thread.join(60)
    failed = [ask for ask in asks if ask.error is not None]
    assert failed, "no stream was in flight there"
    assert [ask for ask in failed if not killed.explains(ask)] == []
    day.fleet.start("gateway-1")
    day.until_taken("gateway-1")
    day.until_together()
    return killed


def workers_come(day: Day) -> None:
    """One is written into a file, one gets an address in DNS, and one registers itself in Redis."""
    day.fleet.start(FROM_FILE, FROM_DNS, SELF_REGISTERED)
    day.file.write_text(json.dumps([f"http://{day.place(FROM_FILE)}"]))
    day.dns.has(vllm=[day.fleet.addresses[name] for name in ("worker-4", FROM_DNS)])
    day.until_ready(FROM_FILE, FROM_DNS, SELF_REGISTERED)
    found = {worker["id"]: worker["source"] for worker in day.ask("gateway-2", "/workers").json()["workers"]}
    sources = {FROM_FILE: "lab", FROM_DNS: "rack", SELF_REGISTERED: "sidecars", **dict.fromkeys(FIXED, "settings")}
    assert found == {day.place(name): source for name, source in sources.items()}


def a_policy_changes(day: Day) -> None:
    day.change("gateway-1", "/policies/batch", {"rule": "lpwl"})
    day.change("gateway-1", "/routes", {"routes": [{"name": "all", "policy": "batch"}]})
    sent_s = changed_s = time.monotonic()
    while not day.decides("gateway-2", "batch"):
        sent_s = time.monotonic()
    assert sent_s - changed_s < 1.0
    day.change("gateway-1", "/routes", {"routes": []})
    block_until(lambda: not day.decides("gateway-2", "batch"))


def redis_pauses(day: Day) -> None:
    """The gateways go on alone, and find each other again."""
    redis = day.fleet.processes["redis"]
    os.kill(redis.pid, signal.SIGSTOP)
    try:
        time.sleep(REDIS_PAUSE_S)
        assert all(day.ask(gateway, "/replicas").json()["alone"] for gateway in GATEWAYS)
    finally:
        os.kill(redis.pid, signal.SIGCONT)
    day.until_together(5.0)
    day.until_ready(SELF_REGISTERED)


def redis_is_flushed(day: Day) -> None:
    """The gateways write their state back, and the worker registers itself again."""
    day.redis("flushall")
    block_until(lambda: day.redis("keys", "*:worker:*"), 30)
    block_until(lambda: day.redis("keys", "*:state"), 30)
    day.until_together(5.0)
    day.until_ready(SELF_REGISTERED)


def all_restart(day: Day) -> None:
    """One after the other, workers drained first."""
    for worker in (*FIXED, FROM_FILE, FROM_DNS):
        day.restart_drained(worker)
    day.restart(SELF_REGISTERED)
    day.until_ready(SELF_REGISTERED)
    for gateway in GATEWAYS:
        day.restart(gateway)
        day.until_taken(gateway)
    day.restart("redis")
    day.until_together()
    day.until_ready(*FIXED, FROM_FILE, FROM_DNS, SELF_REGISTERED)
    assert all("batch" in day.ask(gateway, "/policies").json()["policies"] for gateway in GATEWAYS)


def haproxy_restarts(day: Day) -> None:
    """A reload starts its worker process again."""
    os.kill(day.fleet.processes["haproxy"].pid, signal.SIGUSR2)
    block_until(lambda: day.fleet.log("haproxy").count("New worker") == 2, 30)
