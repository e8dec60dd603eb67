"""The next turn's prefill reads the answer before: vLLM's scheduler calls the clock's connector in both directions.

vLLM 0.33 ends streams with the transfer parameters, too. The workers' KV cache has no content, so no text is compared.
"""

import json

import httpx
import pytest

from backends.vllm.handover.connectors import CONNECTORS
from loadtest.fleet.vllm import CONNECTOR
from tests.real_vllm.conftest import empty_cache
from tests.real_vllm.test_kv_handover import LEGS, MODEL, WAIT_S, decoded, in_use, metric, prefilled
from tests.support.waiting import block_until

pytestmark = pytest.mark.nightly

TURN_S = 20.0
SCALE = 4.0
PROMPT_TOKENS = 16_000
"""So long that it is cheaper to read than to compute, also beside other work."""
NEW_TOKENS = 40
ASKED = {"model": MODEL, "max_tokens": 80, "ignore_eos": True, "return_token_ids": True}
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def pair(vllm):
    """Return a prefill and a decode worker that keeps turns."""
    extra = {"bidirectional_kv_xfer": True, "decoder_kv_blocks_ttl": TURN_S}
    connector = json.dumps(CONNECTOR | {"kv_connector_extra_config": extra})
    return [vllm("--kv-transfer-config", connector, seed=seed, time_scale=SCALE) for seed in (1, 2)]


@pytest.fixture
def site(pair, front):
    prefill, decode = [
        {"url": server.url, "role": role} for server, role in zip(pair, ("prefill", "decode"), strict=True)
    ]
    handover = {"connector": "nixl_pull", "turn_lease_s": TURN_S, "lease_margin_s": 5, "latency_s": 0}
    allow = "--set", 'auth.allow=["transfer_params"]'
    return front(prefill, decode, flags=("--set", f"handover={json.dumps(handover)}", *allow))


def outcomes(gateway):
    lines = gateway.admin.get("/metrics").text.splitlines()
    found = [line.split('"') for line in lines if line.startswith("warmroute_kept_turns_total{")]
    return {parts[1]: int(float(parts[2].split()[-1])) for parts in found}


def turn(gateway, prefill, prompt, fields):
    """Ask for an answer over both workers. Return its token ids."""
    named = {"x-prefiller-host-port": prefill.url.removeprefix("http://")}
    answer = gateway.client.post("/v1/completions", json=ASKED | {"prompt": prompt} | fields, headers=named)
    assert answer.status_code == 200, answer.text
    assert "remote_engine_id" not in answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith(("{", "data: {"))]
    return [token for line in lines for choice in json.loads(line)["choices"] for token in choice["token_ids"]]


def read(worker):
    return metric(worker.url, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer")


def kept(gateway):
    return sum(candidate["load"]["kept_turns"] for candidate in gateway.candidates())


@pytest.mark.parametrize("fields", [{}, STREAMED], ids=["whole", "stream"])
def test_the_next_turns_prefill_reads_the_answer(pair, site, fields):
    prefill, decode = pair
    first = [(3_300 if fields else 300) + number % 3_000 for number in range(PROMPT_TOKENS)]
    answer = turn(site, prefill, first, fields)
    assert len(answer) == ASKED["max_tokens"]
    assert kept(site) == 1
    assert in_use(decode.url) > 0
    empty_cache(prefill)  # else it would lack the answer alone, which is cheap to compute
    site.settle()
    before = read(prefill)
    turn(site, prefill, first + answer + list(range(NEW_TOKENS)), fields)
    assert outcomes(site) == {"none": 1, "kept": 2, "read": 1}
    assert read(prefill) - before == len(first) + len(answer) - 1
    expired = metric(decode.url, "vllm:nixl_num_kv_expired_reqs_total")
    block_until(lambda: in_use(decode.url) == 0, TURN_S + WAIT_S)  # nobody reads the second answer
    decoded(decode.url, [1, 2, 3], None)  # counts reach the page with the engine's next step
    block_until(lambda: metric(decode.url, "vllm:nixl_num_kv_expired_reqs_total") == expired + 1, WAIT_S)
    block_until(lambda: kept(site) == 0, WAIT_S)


def test_a_turn_whose_time_has_ended_is_refused(pair):
    prefill, decode = [server.url for server in pair]
    ids = list(range(5_000, 5_400))
    answer = decoded(decode, ids, prefilled(prefill, ids) | {"prompt_token_ids": ids}).json()
    params = answer["kv_transfer_params"]
    assert (params["do_remote_decode"], params["remote_num_tokens"]) == (True, len(ids) + 4)
    block_until(lambda: in_use(decode) == 0, TURN_S + WAIT_S)
    empty_cache(pair[0])
    wanted = CONNECTORS["nixl_pull"].prefill_params(LEGS) | params
    body = {"model": MODEL, "prompt": [*ids, *range(200)], "max_tokens": 1, "kv_transfer_params": wanted}
    assert httpx.post(f"{prefill}/v1/completions", json=body, timeout=30).status_code == 500
    assert metric(prefill, "vllm:nixl_num_failed_transfers_total") == 0
    block_until(lambda: in_use(prefill) == 0, WAIT_S)
