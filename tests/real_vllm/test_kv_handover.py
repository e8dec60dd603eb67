"""KV handovers between vLLM servers without a GPU: vLLM's scheduler calls the clock's connector."""

import asyncio
import json
from contextlib import contextmanager

import httpx
import pytest

from backends.vllm.handover.connector import HandoverPeer, Legs
from backends.vllm.handover.connectors import CONNECTORS
from backends.vllm.handover.prefill_answer import read_prefill_answer
from loadtest.drive.conversations import play
from loadtest.fleet.process import Process, warmroute
from loadtest.fleet.vllm import CONNECTOR
from loadtest.workload.conversations import Shape, generate
from tests.support.waiting import block_until

MODEL = "warmroute-simulated"
URL = r"(http://[^\s\"',]+)"
PULL = CONNECTORS["nixl_pull"]
LEGS = Legs(transfer_id="t", prefill=HandoverPeer(host="127.0.0.1"), decode=HandoverPeer(host="127.0.0.1"))
LEASE_S = 4.0
WAIT_S = 20.0


@pytest.fixture(scope="module")
def pair(vllm):
    """Return the URLs of a prefill and a decode worker with short leases."""
    connector = json.dumps(CONNECTOR | {"kv_connector_extra_config": {"kv_lease_duration": LEASE_S}})
    return [vllm("--kv-transfer-config", connector, seed=seed, time_scale=1.0).url for seed in (1, 2)]


def metric(url, name):
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0] == name)


def in_use(url):
    return metric(url, "vllm:kv_cache_usage_perc")


def prompt(first):
    return list(range(first, first + 400))


def prefilled(url, ids):
    """Return the parameters that a prefill hands over."""
    body = {"model": MODEL, "prompt": ids, "max_tokens": 1, "kv_transfer_params": PULL.prefill_params(LEGS)}
    answer = httpx.post(f"{url}/v1/completions", json=body | {"return_token_ids": True}, timeout=30)
    return PULL.decode_params(LEGS, PULL.handed_over(read_prefill_answer(answer.content)))


def decoded(url, ids, params):
    body = {"model": MODEL, "prompt": ids, "max_tokens": 5, "ignore_eos": True, "kv_transfer_params": params}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=30)


def test_a_prompt_is_computed_by_one_server_and_answered_by_the_other(pair):
    prefill, decode = pair
    answer = decoded(decode, prompt(300), prefilled(prefill, prompt(300)))
    assert answer.json()["usage"]["completion_tokens"] == 5
    lines = httpx.get(f"{decode}/metrics").text.splitlines()
    (received,) = [line for line in lines if "prompt_tokens_by_source_total" in line and "external_kv" in line]
    assert float(received.rsplit(" ", 1)[1]) >= 399
    assert metric(decode, "vllm:nixl_xfer_time_seconds_count") == 1
    block_until(lambda: in_use(prefill) == 0 and in_use(decode) == 0, WAIT_S)
    assert metric(prefill, "vllm:nixl_num_kv_expired_reqs_total") == 0


def test_blocks_that_nobody_reads_are_free_when_their_lease_ends(pair):
    prefill, decode = pair
    params = prefilled(prefill, prompt(1_000))
    assert in_use(prefill) > 0
    block_until(lambda: in_use(prefill) == 0, WAIT_S)
    assert metric(prefill, "vllm:nixl_num_kv_expired_reqs_total") == 1
    # as with NIXL, a read after the lease is answered, and only the prefill worker counts it
    assert decoded(decode, prompt(1_000), params).status_code == 200
    block_until(lambda: _late(prefill) == 1, WAIT_S)


def _late(url):
    prefilled(url, prompt(2_000))  # counts reach the page with the engine's next step
    return metric(url, "vllm:nixl_num_notifications_after_expiry_total")


def test_the_parameters_of_another_process_fail_the_load_alone(pair):
    prefill, decode = pair
    params = prefilled(prefill, prompt(3_000)) | {"remote_engine_id": "another"}
    assert decoded(decode, prompt(3_000), params).status_code == 500
    assert decoded(decode, prompt(3_000), {}).status_code == 200
    block_until(lambda: in_use(decode) == 0, WAIT_S)


def test_incomplete_parameters_are_ignored(pair):
    decode = pair[1]
    assert decoded(decode, prompt(4_000), {"do_remote_prefill": True}).status_code == 200


@contextmanager
def gateway(pair):
    """Start a gateway that hands over between the two servers. Yield its URLs."""
    workers = json.dumps([{"url": url, "role": role} for url, role in zip(pair, ("prefill", "decode"), strict=True)])
    handover = {"connector": "nixl_pull", "lease_s": LEASE_S, "lease_margin_s": 0.5, "latency_s": 0.001}
    settings = ["--set", f"handover={json.dumps(handover)}", "--set", f"workers={workers}"]
    process = Process(warmroute("serve", "--port", "0", "--admin-port", "0", *settings), "gateway")
    try:
        yield process.wait_for(rf"public port.*{URL}")[1], process.wait_for(rf"admin port.*{URL}")[1]
    finally:
        process.stop()


def test_the_demos_conversations_run_on_both_without_a_failed_request(pair):
    with gateway(pair) as (public, admin):
        block_until(lambda: httpx.get(f"{public}/readyz").status_code == 200, 60.0)
        conversations = generate(Shape(conversations=10, turns=3, starts_per_s=4.0), 0)
        timings = asyncio.run(play(public, MODEL, conversations))
        assert [timing.error for timing in timings if timing.error] == []
        assert len(timings) == 30
        assert metric(admin, "warmroute_handovers_total") > 0
    for url in pair:
        block_until(lambda url=url: in_use(url) == 0, WAIT_S)
