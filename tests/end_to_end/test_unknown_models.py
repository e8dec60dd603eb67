import time

import httpx
import pytest

from loadtest.demo.fleet import URL
from loadtest.fleet.process import Process, warmroute

pytestmark = pytest.mark.slow

NEVER_ANSWERS = "http://127.0.0.1:9"


def ask(url, model):
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20)


def add_dead_worker(its):
    its.admin.post("/admin/v1/workers", json={"url": NEVER_ANSWERS}).raise_for_status()
    its.wait_for(lambda: "cannot connect" in its.workers()["127.0.0.1:9"]["reason"])


def test_a_wrong_model_name_is_refused_at_once_beside_a_worker_that_never_answered(start):
    its = start(workers=1)
    add_dead_worker(its)
    began_s = time.monotonic()
    answer = ask(its.url, "nobody-serves-this")
    assert time.monotonic() - began_s < 2.0
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    message = answer.json()["error"]["message"]
    assert "`nobody-serves-this` does not exist; this fleet serves: warmroute-simulated." in message
    assert "Workers that have not answered since the gateway started: 1." in message
    assert ask(its.url, its.model).status_code == 200
    question = {"body": {"model": "nobody-serves-this", "messages": [{"role": "user", "content": "Hi"}]}}
    explained = its.admin.post("/admin/v1/explain", json=question).json()
    assert explained["choice"] is None and explained["reason"] == message
    excluded = explained["excluded"]
    assert excluded["127.0.0.1:9"].startswith("starting: not up yet: cannot connect")
    assert "does not serve nobody-serves-this" in excluded.values()


def test_a_model_whose_only_worker_has_died_is_unavailable_and_not_unknown(start):
    its = start(workers=1, serve_flags=("--set", "timeouts.queue_s=0.5"))
    add_dead_worker(its)
    its.running.workers[0].kill()
    dead = its.running.worker_urls[0].removeprefix("http://")
    its.wait_for(lambda: its.workers()[dead]["state"] == "unhealthy")
    answer = ask(its.url, its.model)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker_available")


def test_while_no_worker_has_ever_answered_requests_wait():
    ports = ("--port", "0", "--admin-port", "0", "--set", "timeouts.queue_s=0.5")
    gateway = Process(warmroute("serve", *ports, "--worker", NEVER_ANSWERS), "gateway")
    try:
        url = gateway.wait_for(rf"public port.*{URL}").group(1)
        gateway.wait_for("worker state.*cannot connect")
        began_s = time.monotonic()
        answer = ask(url, "anything")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker_available")
        assert time.monotonic() - began_s >= 0.5
    finally:
        gateway.stop()
