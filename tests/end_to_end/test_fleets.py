"""Clients' view of fleets whose workers differ, stall or stop, and of a gateway that shuts down."""

import json
import os
import signal
import threading
import time

import httpx
import pytest

from loadtest.fleet.process import Process, warmroute

pytestmark = pytest.mark.slow


def message(model, text, tokens=4):
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}


def chat(system, text, tokens=4, model=None):
    body = message(model or system.model, text, tokens)
    return httpx.post(f"{system.url}/v1/chat/completions", json=body, timeout=30)


class Stream(threading.Thread):
    """A streamed answer read to its end in the background."""

    def __init__(self, system, tokens) -> None:
        super().__init__(daemon=True)
        self._url = f"{system.url}/v1/chat/completions"
        self._body = {**message(system.model, "Tell a story.", tokens), "stream": True}
        self.worker = None
        self.frames: list[str] = []
        self.started = threading.Event()
        self.start()

    def run(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=30) as response:
            self.worker = response.headers["x-warmroute-worker"]
            for line in response.iter_lines():
                if line:
                    self.frames.append(line)
                    self.started.set()

    def wait(self):
        self.join(20)
        assert not self.is_alive()
        return self.frames


@pytest.fixture
def spawn():
    """Return a function that starts one more embedded worker and returns it with its URL."""
    processes = []

    def begin(*flags):
        process = Process(warmroute("worker", "--port", "0", "--time-scale", "0.02", *flags), "worker")
        processes.append(process)
        return process, process.wait_for(r"worker (http://[^\s]+)").group(1)

    yield begin
    for process in processes:
        process.stop()


def test_adapter_and_long_prompts_go_to_the_workers_that_serve_them(start, spawn):
    system = start(workers=1, policy="round_robin", worker_flags=("--time-scale", "0.02", "--max-model-len", "200"))
    _, url = spawn("--lora", "my-lora", "--seed", "9")
    wide = system.admin.post("/admin/v1/workers", json={"url": url}).json()["id"]
    system.wait_for(lambda: system.workers()[wide]["state"] == "ready", what="the second worker")
    listed = [card["id"] for card in httpx.get(f"{system.url}/v1/models").json()["data"]]
    assert sorted(listed) == sorted([system.model, "my-lora"])
    for number in range(4):
        assert chat(system, f"{number}", model="my-lora").headers["x-warmroute-worker"] == wide
        long = chat(system, f"{number} " + "word " * 300)
        assert (long.status_code, long.headers["x-warmroute-worker"]) == (200, wide)
    assert len({chat(system, f"short {number}").headers["x-warmroute-worker"] for number in range(4)}) == 2
    unknown = chat(system, "Hello", model="nobody-serves-this")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


def test_explain_sends_nothing_to_a_worker_and_reserves_nothing(start):
    system = start(workers=2)
    chat(system, "The same prompt. " * 40)
    system.wait_idle()
    before = [system.worker_metric(index, "vllm:prefix_cache_queries_total") for index in (0, 1)]
    body = message(system.model, "The same prompt. " * 40)
    asked = {"path": "/v1/chat/completions", "headers": {}, "body": body}
    for _ in range(3):
        answer = system.admin.post("/admin/v1/explain", json=asked).json()
    cached = {candidate["worker"]: candidate["cached_tokens"] for candidate in answer["candidates"]}
    assert len(cached) == 2
    assert answer["choice"] == max(cached, key=cached.get)
    assert cached[answer["choice"]] > 100
    assert [system.worker_metric(index, "vllm:prefix_cache_queries_total") for index in (0, 1)] == before
    assert system.loads("running_requests") == [0, 0]


def test_a_stalled_worker_ends_its_stream_with_an_error_and_comes_back(start):
    flags = ("--set", "timeouts.stream_idle_s=0.5", "--set", "health.probe_timeout_s=0.3")
    flags += ("--set", "health.probe_interval_s=0.2")
    system = start(workers=2, worker_flags=("--time-scale", "1"), serve_flags=flags)
    stream = Stream(system, 3000)
    assert stream.started.wait(10)
    index = [url.removeprefix("http://") for url in system.running.worker_urls].index(stream.worker)
    process = system.running.workers[index]
    os.kill(process.pid, signal.SIGSTOP)
    try:
        frames = stream.wait()
        assert json.loads(frames[-2].removeprefix("data: "))["error"]["code"] == "stream_idle_timeout"
        assert frames[-1] == "data: [DONE]"
        state = lambda: system.workers()[stream.worker]["state"]  # noqa: E731
        system.wait_for(lambda: state() == "unhealthy", what="the ejection")
        others = {chat(system, f"meanwhile {number}", 1).headers["x-warmroute-worker"] for number in range(3)}
        assert stream.worker not in others
    finally:
        os.kill(process.pid, signal.SIGCONT)
    back_s = time.monotonic()
    while chat(system, f"back {time.monotonic()}", 1).headers["x-warmroute-worker"] != stream.worker:
        assert time.monotonic() - back_s < 2
    system.wait_idle()


def test_no_worker_left_answers_503_with_retry_after_and_no_prompt_is_logged(start):
    system = start(workers=1, serve_flags=("--set", "timeouts.queue_s=0.3", "--access-log"))
    assert chat(system, "swordfish " * 5).status_code == 200
    os.kill(system.running.workers[0].pid, signal.SIGKILL)
    system.wait_for(lambda: all(w["state"] == "unhealthy" for w in system.workers().values()), what="the ejection")
    answer = chat(system, "swordfish " * 5)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker_available")
    assert int(answer.headers["retry-after"]) >= 1
    assert system.admin.get("/readyz").headers["content-type"] == "application/problem+json"
    tail = system.running.gateway.tail
    system.wait_for(lambda: "status=503" in tail(), what="the access log's line, which a thread writes")
    assert "swordfish" not in tail()


def test_a_stopping_gateway_lets_streams_end_and_takes_no_new_requests(start):
    system = start(workers=1, worker_flags=("--time-scale", "1"))
    stream = Stream(system, 150)
    assert stream.started.wait(10)
    os.kill(system.running.gateway.pid, signal.SIGTERM)
    system.running.gateway.wait_for("shutting down", 5)
    with pytest.raises(httpx.TransportError):
        chat(system, "too late")
    frames = stream.wait()
    assert frames[-1] == "data: [DONE]"
    assert json.loads(frames[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"


def test_the_drain_limit_ends_what_is_left_with_an_error_event(start):
    system = start(workers=1, worker_flags=("--time-scale", "1"), serve_flags=("--set", "timeouts.drain_s=0.3"))
    stream = Stream(system, 3000)
    assert stream.started.wait(10)
    stopped_s = time.monotonic()
    os.kill(system.running.gateway.pid, signal.SIGTERM)
    frames = stream.wait()
    assert time.monotonic() - stopped_s < 3
    assert json.loads(frames[-2].removeprefix("data: "))["error"]["code"] == "shutting_down"
    assert frames[-1] == "data: [DONE]"
