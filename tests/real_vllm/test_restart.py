"""After an engine dies and starts again on the same port, its old view is dropped and the new view is exact."""

import threading
from dataclasses import replace

import httpx
import pytest

from loadtest.fleet.vllm import RunningVllm

pytestmark = pytest.mark.any_version

PROMPT = "All that was remembered is lost with the process that remembered it, and only with that. " * 20


@pytest.fixture
def mortal(vllm):
    """A server of its own and a function that starts another in its place; stopped afterwards."""
    worker = vllm.worker()
    servers = [RunningVllm(worker, "vllm to be killed")]
    servers[0].wait_healthy()
    port = int(servers[0].url.rpartition(":")[2])
    same = replace(worker, port=port, events_port=servers[0].events_port)

    def again():
        servers.append(RunningVllm(same, "vllm once more"))
        servers[-1].wait_healthy()
        return servers[-1]

    yield servers[0], again
    servers[-1].process.stop()


def test_a_worker_killed_in_mid_stream_and_restarted_is_followed(mortal, front):
    server, again = mortal
    gateway = front(server, WARMROUTE_TIMEOUTS__QUEUE_S="1")
    for number in range(6):
        gateway.chat(f"{number // 2} {PROMPT}")
    gateway.exact(6)

    body = {"model": gateway.model, "prompt": PROMPT, "max_tokens": 20_000, "ignore_eos": True, "stream": True}
    lines = []

    def stream():
        with httpx.stream("POST", f"{gateway.url}/v1/completions", json=body, timeout=60) as answer:
            lines.extend(answer.iter_lines())

    client = threading.Thread(target=stream)
    client.start()
    gateway.wait_for(lambda: len(lines) > 4, "the stream")
    server.process.kill()
    client.join(30)
    assert not client.is_alive()
    assert any('"error"' in line for line in lines[-4:]), lines[-4:]
    gateway.wait_for(lambda: gateway.workers()[0]["state"] != "ready", "the loss")
    gone = gateway.send("/v1/completions", {"model": gateway.model, "prompt": PROMPT, "max_tokens": 1})
    assert gone.status in (502, 503)

    again()
    gateway.wait_for(gateway.ready, "the new engine")
    gateway.wait_for(lambda: gateway.residency() == "exact", "an exact view")
    gateway.settle()
    for number in range(6):
        answer = gateway.chat(f"{number // 2} {PROMPT}")
        assert (answer.reported > 200) == bool(number % 2)
    assert gateway.residency() == "exact"
    gateway.exact(12)
