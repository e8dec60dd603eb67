import asyncio
import json
import os
import shlex
import signal
import threading
import time

import httpx
import pytest
import redis

from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import warmroute
from router.security.keys import KeyEntry, digest_of, new_key
from tests.end_to_end.conftest import ANY_PORT, Gateway, samples
from tests.support.redis import needs_redis
from tests.support.redis_server import redis_server
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import block_until

MODEL = "warmroute-simulated"
TOKEN = "a-token-of-the-admin-port"


class Sidecar:
    def __init__(self, process, worker):
        self.process = process
        self.worker = worker
        self.url = process.wait_for(r"public port.*url=(\S+)")[1]
        self.drain_url = process.wait_for(r"drain port.*url=(\S+)")[1]
        self.headers = {}

    def status(self, path="/readyz"):
        return httpx.get(f"{self.url}{path}", headers=self.headers, timeout=5)

    def until(self, state, limit_s=20.0):
        end_s = time.monotonic() + limit_s
        while (found := self.status().json()["status"]) != state:
            assert time.monotonic() < end_s, f"{found}, not {state}: {self.process.tail()}"
            time.sleep(0.02)

    def complete(self, tokens=4):
        body = {"model": MODEL, "prompt": "a b c", "max_tokens": tokens, "ignore_eos": True, "stream": False}
        return httpx.post(f"{self.url}/v1/completions", json=body, headers=self.headers, timeout=60)


@pytest.fixture
def sidecar(processes):
    """Start a sidecar beside `worker`, or with an embedded worker as its child."""

    def begin(*flags, worker=None, command=()):
        port = free_ports(1)
        places = (*ANY_PORT, "--set", "sidecar.drain_port=0")
        url = worker or f"http://127.0.0.1:{port}"
        if worker is None and not command:
            command = warmroute("worker", "--port", str(port))
        child = ("--", *command) if command else ()
        return Sidecar(processes("sidecar", *places, "--worker", url, *flags, *child), url)

    return begin


class Call(threading.Thread):
    def __init__(self, call):
        super().__init__(daemon=True)
        self._call = call
        self.result = None
        self.start()

    def run(self):
        self.result = self._call()

    def answer(self):
        self.join(30)
        return self.result


def while_running(sidecar, tokens=120):
    call = Call(lambda: sidecar.complete(tokens))
    block_until(lambda: samples(sidecar.worker, "vllm:num_requests_running"), 10)
    return call


def test_a_sidecar_forwards_and_answers_for_its_worker_and_guards_it(sidecar):
    key = new_key()
    one = sidecar("--set", f"auth.api_keys={KeyEntry('gateways', digest_of(key.encode())).line}")
    one.until("ready")
    assert one.complete().status_code == one.status("/metrics").status_code == 401
    one.headers = {"Authorization": f"Bearer {key}"}
    assert one.complete().status_code == 200
    assert one.status("/health").json() == {"status": "ready"}
    assert one.status("/livez/engine").json() == {"status": "alive"}
    assert one.status("/version").json() == {"version": "0.33.0+simulated"}
    assert [card["id"] for card in one.status("/v1/models").json()["data"]] == [MODEL]
    assert "vllm:num_requests_running" in one.status("/metrics").text
    assert httpx.get(one.drain_url).status_code == 405
    assert httpx.post(one.drain_url, headers={"Host": "evil.example"}).status_code == 403
    assert httpx.post(one.drain_url, headers={"Origin": "http://evil.example"}).status_code == 403
    one.until("ready")


def test_drain_waits_for_the_running_requests_and_refuses_further_ones(sidecar):
    one = sidecar()
    one.until("ready")
    running = while_running(one)
    drain = Call(lambda: httpx.post(one.drain_url, timeout=30))
    one.until("draining")
    refused = one.complete()
    assert refused.status_code == 503 and refused.headers["connection"] == "close"
    assert drain.is_alive() or running.result is not None
    assert drain.answer().json() == {"status": "drained", "requests": 0}
    assert running.answer().json()["usage"]["completion_tokens"] == 120
    assert httpx.post(one.drain_url).json() == {"status": "drained", "requests": 0}


def test_drain_answers_504_when_requests_outlast_it(sidecar):
    one = sidecar("--set", "timeouts.drain_s=0.2")
    one.until("ready")
    running = while_running(one, 400)
    answer = httpx.post(one.drain_url, timeout=30)
    assert (answer.status_code, answer.json()) == (504, {"status": "requests still run", "requests": 1})
    assert running.answer().status_code == 200


def test_a_drained_worker_that_another_process_replaces_takes_requests_again(sidecar, processes):
    port = free_ports(1)
    worker = processes("worker", "--port", str(port))
    one = sidecar("--set", "health.probe_interval_s=0.05", worker=f"http://127.0.0.1:{port}")
    one.until("ready")
    assert httpx.post(one.drain_url, timeout=30).status_code == 200
    worker.stop()
    processes("worker", "--port", str(port))
    one.until("ready")
    assert one.complete().status_code == 200


def test_sigterm_ends_the_running_requests_then_the_command_whose_output_passes_through(sidecar):
    port = free_ports(1)
    command = shlex.join(warmroute("worker", "--port", str(port)))
    child = ("sh", "-c", f"echo said by the worker; exec {command}")
    one = sidecar(worker=f"http://127.0.0.1:{port}", command=child)
    one.until("ready")
    assert "said by the worker" in one.process.tail()
    running = while_running(one)
    one.process.terminate()
    assert running.answer().json()["usage"]["completion_tokens"] == 120
    assert one.process.wait(20) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{one.worker}/health")


def test_a_worker_that_dies_ends_the_sidecar_at_once(sidecar):
    one = sidecar()
    pid = int(one.process.wait_for(r"command started.*pid=(\d+)")[1])
    one.until("ready")
    running = while_running(one, 2_000)
    began_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    assert one.process.wait(20) == 137
    assert time.monotonic() - began_s < 5
    assert running.answer().status_code in (502, 503)


class Front(Gateway):
    def candidate(self):
        workers = self.read("workers")["workers"]
        return workers[0]["candidates"][0] if workers[0]["candidates"] else {"residency": "none"}

    def until(self, residency, limit_s=20.0):
        end_s = time.monotonic() + limit_s
        while (found := self.candidate())["residency"] != residency:
            assert time.monotonic() < end_s, found
            time.sleep(0.05)
        return found

    def cached(self, prompt):
        """Send a prompt; return its cached tokens as predicted and as reported."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=30)
        reported = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return int(answer.headers["x-warmroute-predicted-cached-tokens"]), reported


@pytest.fixture
def front(processes):
    def begin(one):
        return Front(
            processes("serve", *ANY_PORT, "--worker", one.url, "--set", "headers.predicted_cached_tokens=true")
        )

    return begin


def test_a_worker_behind_its_sidecar_is_exact_also_for_a_gateway_that_starts_late(sidecar, front, processes):
    port = free_ports(1)
    processes("worker", "--port", str(port))
    one = sidecar(worker=f"http://127.0.0.1:{port}")
    one.until("ready")
    first = front(one)
    first.until("exact")
    prompts = [list(range(start, start + 100)) for start in (1_000, 2_000, 3_000)]
    for prompt in prompts:
        assert first.cached(prompt) == (0, 0)
        assert first.cached(prompt) == (96, 96)
    late = front(one)
    late.until("exact")
    for prompt in prompts:
        assert late.cached(prompt) == (96, 96)
    assert httpx.get(f"{one.url}/kv_event_sources").json()["0"]["endpoint"].startswith("tcp://*:")


@pytest.mark.nightly
@needs_redis
def test_a_worker_is_in_redis_from_its_first_answer_until_its_drain(sidecar):
    with redis_server() as server:
        one = sidecar("--set", f"redis.url={server.url}")
        key = "warmroute:{default}:worker:" + one.url.removeprefix("http://")
        client = redis.Redis.from_url(server.url)
        block_until(lambda: client.get(key), 20)
        registered = json.loads(client.get(key))
        assert (registered["url"], registered["model"]) == (one.url, MODEL)
        server.kill()
        one.until("ready")
        assert one.complete().status_code == 200, "traffic goes on without the registry"
        server.restart()
        block_until(lambda: client.get(key), 20)
        running = while_running(one)
        drain = Call(lambda: httpx.post(one.drain_url, timeout=30))
        block_until(lambda: client.get(key) is None)
        assert drain.answer().status_code == 200 and running.answer().status_code == 200


def test_a_worker_registers_at_gateways_and_leaves_them_when_it_drains(sidecar, processes, tmp_path):
    gateways = [Front(processes("serve", *ANY_PORT, "--set", f"admin_token={TOKEN}")) for _ in range(2)]
    named = ",".join(gateway.admin for gateway in gateways)
    file = tmp_path / "token"
    file.write_text(TOKEN)
    one = sidecar("--set", f"sidecar.gateways={named}", "--set", f"sidecar.gateway_token_file={file}")
    token = {"Authorization": f"Bearer {TOKEN}"}

    def workers(gateway):
        return gateway.read("workers", headers=token)["workers"]

    for gateway in gateways:
        block_until(lambda gateway=gateway: [worker["state"] for worker in workers(gateway)] == ["ready"], 20)
        assert [worker["id"] for worker in workers(gateway)] == [one.url.removeprefix("http://")]
        body = {"model": MODEL, "prompt": "a b c", "max_tokens": 1}
        assert httpx.post(f"{gateway.url}/v1/completions", json=body).status_code == 200
    assert httpx.post(one.drain_url, timeout=30).status_code == 200
    for gateway in gateways:
        block_until(lambda gateway=gateway: not workers(gateway), 20)


PAGES = {
    b"/health": b"",
    b"/version": b'{"version": "0.33.0"}',
    b"/v1/models": b'{"data": [{"id": "m"}]}',
    b"/metrics": b'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_waiting{engine="0"} 0\n',
    b"/kv_event_sources": b"{}",
}


async def test_an_engine_that_hangs_behind_a_healthy_server_is_not_ready(sidecar):
    hangs = asyncio.Event()
    hangs.set()

    async def script(script):
        if hangs.is_set():
            await script.gone()
        else:
            await script.say(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    worker = await ScriptedWorker(script, pages=PAGES).start()
    limits = ("sidecar.hung_after_s=0.5", "health.probe_interval_s=0.05")
    flags = [part for limit in limits for part in ("--set", limit)]
    one = await asyncio.to_thread(sidecar, *flags, worker=f"http://{worker.id}")
    await asyncio.to_thread(one.until, "hung")
    said = (await asyncio.to_thread(one.status)).json()
    assert "a request of one token has waited" in said["reason"]
    assert (await asyncio.to_thread(one.status, "/livez/engine")).status_code == 503
    assert (await asyncio.to_thread(one.status, "/livez")).status_code == 200
    hangs.clear()
    await asyncio.to_thread(one.until, "ready")
    await worker.stop()
