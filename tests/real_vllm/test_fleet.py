import signal

import httpx
import psutil
import pytest

from loadtest.fleet.process import Process, warmroute

URL = r"^worker (http://\S+)"


@pytest.mark.any_version
@pytest.mark.nightly
def test_two_servers_come_up_with_events_and_go_on_ctrl_c(executable):
    environment = str(executable.parents[1])
    flags = ["--kv-gib", "0.0625", "--time-scale", "0.1", "--vllm-env", environment, "--", "--max-num-seqs", "8"]
    process = Process(warmroute("fleet", "--vllm", "2", *flags), "fleet")
    try:
        urls = [process.wait_for(URL, 300.0).group(1) for _ in range(2)]
        process.wait_for("Ctrl-C", 10.0)
        for url in urls:
            assert httpx.get(f"{url}/health").status_code == 200
            card = httpx.get(f"{url}/v1/models").json()["data"][0]
            assert card["id"] == "warmroute-simulated"
            assert 'num_gpu_blocks="4096"' in httpx.get(f"{url}/metrics").text
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 4  # two API servers, two engines
        psutil.Process(process.pid).send_signal(signal.SIGINT)
        _, alive = psutil.wait_procs(children, timeout=30)
        assert not alive
    finally:
        process.stop()


@pytest.fixture(scope="module")
def server(vllm):
    return vllm()


@pytest.mark.any_version
@pytest.mark.parametrize(
    "fields", [{"logprobs": 1}, {"logprobs": 0, "echo": True}], ids=["log probabilities", "with echo"]
)
def test_a_request_that_needs_a_model_is_refused_clearly(server, fields):
    body = {"model": "warmroute-simulated", "prompt": "Hello", "max_tokens": 4, **fields}
    answer = httpx.post(f"{server.url}/v1/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert "runs without a model (WARMROUTE_CLOCK=1)" in answer.json()["error"]["message"]


@pytest.mark.any_version
def test_answers_obey_a_grammar(server):
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}},
        "required": ["n", "ok"],
    }
    body = {"model": "warmroute-simulated", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 200}
    structured = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={**body, "response_format": structured}, timeout=60)
    choice = answer.json()["choices"][0]
    assert choice["finish_reason"] == "stop" and '"ok"' in choice["message"]["content"]


def test_flags_that_cannot_be_modelled_are_refused_at_the_start(executable):
    from dataclasses import replace

    from loadtest.fleet.process import StartError
    from loadtest.fleet.vllm import RunningVllm, VllmWorker

    worker = VllmWorker(executable=executable)
    refused = RunningVllm(replace(worker, flags=("--tensor-parallel-size", "2")), "vllm")
    with pytest.raises(StartError, match="models a worker as one device"):
        refused.wait_healthy(120.0)
