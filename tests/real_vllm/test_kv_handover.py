"""KV handovers between vLLM servers without a GPU: vLLM's scheduler calls the clock's connector."""

import asyncio
import json

import httpx
import pytest

from backends.vllm.handover.connector import HandoverPeer, Legs
from backends.vllm.handover.connectors import CONNECTORS
from backends.vllm.handover.prefill_answer import read_prefill_answer
from loadtest.fleet.vllm import CONNECTOR
from loadtest.load.conversations import play
from loadtest.soak.gauges import AT_REST, left_over
from loadtest.workload.conversations import Shape, generate
from tests.support.fleets import fleet, printed_gateway
from tests.support.waiting import block_until

MODEL = "warmroute-simulated"
PULL = CONNECTORS["nixl_pull"]
LEGS = Legs(transfer_id="t", prefill=HandoverPeer(host="127.0.0.1"), decode=HandoverPeer(host="127.0.0.1"))
LEASE_S = 4.0
WAIT_S = 20.0


@pytest.fixture(scope="module")
def pair(vllm):
    """Return the URLs of a prefill and a decode worker with short leases."""
    connector = json.dumps(CONNECTOR | {"kv_connector_extra_config": {"kv_lease_duration": LEASE_S}})
    return [vllm("--kv-transfer-config", connector, seed=seed, time_scale=1.0).url for seed in (1, 2)]


def metric(url, name, **labels):
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    named = [line for line in lines if line.split("{")[0].split(" ")[0] == name]
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(float(line.rsplit(" ", 1)[1]) for line in named if all(one in line for one in wanted))


def in_use(url):
    return metric(url, "vllm:kv_cache_usage_perc")


def prompt(first):
    return list(range(first, first + 400))


def prefilled(url, ids):
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
    assert metric(decode, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer") >= 399
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


# two prefill and two decode workers, as a user starts them


CHATS = Shape(conversations=16, turns=3, pause_s=1.0, answer_tokens=64, document_chars=(2_000, 6_000))
UPLOADS = Shape(conversations=8, turns=1, document_chars=(40_000, 90_000), shared_documents=0.0)


async def demo(url):
    """Play uploads beside chats."""
    played = await asyncio.gather(*[play(url, MODEL, generate(shape, 0)) for shape in (CHATS, UPLOADS)])
    return [timing for timings in played for timing in timings]


def planned(admin):
    """Return the decisions that are parts of a KV handover, by the handover, with each part's worker."""
    answer = httpx.get(f"{admin}/admin/v1/decisions", params={"limit": 1_000, "candidates": "chosen"})
    found = {}
    for one in answer.json()["decisions"]:
        if one["handover"] is not None:
            parts = found.setdefault(one["handover"]["plan"], {})
            parts.setdefault(one["handover"]["leg"], []).append((one["worker"], one["outcome"]))
    return found


def at_rest(admin):
    workers = httpx.get(f"{admin}/admin/v1/workers").json()["workers"]
    return not left_over(workers, {name: metric(admin, name) for name in AT_REST})


def test_a_fleet_with_roles_runs_the_demo_without_a_failed_request(executable):
    """Afterwards the gateway's counts, its decisions and vLLM's counts agree about every KV handover."""
    flags = ["--roles", "prefill=2,decode=2", "--vllm-env", str(executable.parents[1])]
    workers = fleet("--vllm", "4", *flags)
    try:
        urls = [workers.wait_for(r"^worker (http://\S+) \w+$", 300.0).group(1) for _ in range(4)]
        # without a latency, the first long prompts beside streams are handed over
        gateway, public, admin = printed_gateway(workers, "--set", "handover.latency_s=0")
        try:
            timings = asyncio.run(demo(public))
            assert [timing.error for timing in timings if timing.error] == []
            assert len(timings) == 16 * 3 + 8
            block_until(lambda: at_rest(admin), WAIT_S)
            block_until(lambda: not any(map(in_use, urls)), WAIT_S)
            _accounted(admin, urls[:2], urls[2:])
        finally:
            gateway.stop()
    finally:
        workers.stop()


def _accounted(admin, prefills, decodes):
    plans = planned(admin)
    assert len(plans) == metric(admin, "warmroute_handovers_total")
    handed = metric(admin, "warmroute_handovers_total", outcome="handed_over")
    assert handed > 0
    assert sum(metric(url, "vllm:nixl_xfer_time_seconds_count") for url in decodes) == handed
    for counter in ("nixl_num_kv_expired_reqs_total", "nixl_num_notifications_after_expiry_total"):
        assert sum(metric(url, f"vllm:{counter}") for url in prefills) == 0
