"""vLLM behind `warmroute sidecar`: exact views, an engine that hangs, and vLLM as the sidecar's child."""

import signal
import threading
import time

import httpx
import psutil
import pytest

from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process, warmroute

PLACES = ("--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--set", "sidecar.drain_port=0")
QUICK = ("--set", "sidecar.hung_after_s=3")
SYSTEM = {"role": "system", "content": "You keep the light on the northern cape, and answer every ship. " * 10}


class Sidecar:
    def __init__(self, process):
        self.process = process
        self.url = process.wait_for(r"public port.*url=(\S+)")[1]

    def until(self, state, limit_s=60.0):
        end_s = time.monotonic() + limit_s
        while (found := httpx.get(f"{self.url}/readyz", timeout=5).json()["status"]) != state:
            assert time.monotonic() < end_s, f"{found}, not {state}: {self.process.tail()}"
            time.sleep(0.05)


@pytest.fixture
def sidecar():
    started = []

    def begin(*flags):
        started.append(Process(warmroute("sidecar", *PLACES, *flags), "sidecar"))
        return Sidecar(started[-1])

    yield begin
    for process in started:
        process.stop()


def talk_on(gate, talks):
    for talk in talks:
        talk.append({"role": "assistant", "content": gate.chat(talk).text})
        talk.append({"role": "user", "content": "And at the next hour? " * 10})


def test_a_worker_behind_its_sidecar_is_exact_also_for_a_gateway_that_starts_late(vllm, sidecar, front):
    server = vllm(buffer_steps=2)
    server.reset_prefix_cache()
    one = sidecar("--worker", server.url)
    one.until("ready")
    gate = front({"url": one.url})
    assert gate.residency() == "exact"
    talks = [[SYSTEM, {"role": "user", "content": f"Ship {number} asks for the depth. " * 20}] for number in range(4)]
    for _ in range(3):
        talk_on(gate, talks)
    gate.exact(12)
    late = front({"url": one.url})
    assert late.residency() == "exact"
    for _ in range(2):
        talk_on(late, talks)
    late.exact(8)
    gate.settle()
    talk_on(gate, talks)
    gate.exact(16)


def test_an_engine_that_is_stopped_hangs_until_it_goes_on(vllm, sidecar):
    server = vllm(buffer_steps=2)
    one = sidecar("--worker", server.url, *QUICK)
    one.until("ready")
    family = psutil.Process(server.process.pid).children(recursive=True)
    (engine,) = [process for process in family if "EngineCore" in " ".join(process.cmdline())]
    engine.send_signal(signal.SIGSTOP)
    try:
        one.until("hung")
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert httpx.get(f"{one.url}/livez/engine").status_code == 503
    finally:
        engine.send_signal(signal.SIGCONT)
    one.until("ready")
    assert httpx.get(f"{one.url}/livez/engine").status_code == 200


@pytest.mark.nightly
def test_sigterm_lets_a_running_stream_end_before_vllm_does(vllm, sidecar):
    worker = vllm.worker()
    port, events_port = free_ports(1), free_ports(16)
    variables = [f"{name}={value}" for name, value in worker.variables().items()]
    command = ("env", *variables, *worker.command(port, events_port))
    one = sidecar("--worker", f"http://127.0.0.1:{port}", "--", *command)
    one.until("ready", 300)
    model = httpx.get(f"{one.url}/v1/models").json()["data"][0]["id"]
    body = {"model": model, "prompt": "a", "max_tokens": 500, "ignore_eos": True, "stream": True}
    begun, lines = threading.Event(), []

    def stream():
        with httpx.stream("POST", f"{one.url}/v1/completions", json=body, timeout=60) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                begun.set()

    reader = threading.Thread(target=stream)
    reader.start()
    assert begun.wait(30)
    one.process.terminate()
    assert one.process.wait(60) == 0
    reader.join(10)
    assert lines[-2:] == ["data: [DONE]", ""]
    assert len(lines) > 900, "the stream was not cut off"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/health")
