"""Host memory of embedded workers, and pulls between them, with the fields of vLLM's OffloadingConnector."""

import asyncio

import pytest

from backends.simulated.kv import peer_tier as module
from backends.vllm.handover.connector import HandoverPeer
from backends.vllm.handover.offloading_peer import pull_params
from tests.support.waiting import eventually

COMPLETIONS = "/v1/completions"
PROMPT = list(range(300, 420))


@pytest.fixture
async def pair(worker_with):
    async with (
        worker_with(kv_connector="offloading_peer") as source,
        worker_with(kv_connector="offloading_peer") as puller,
    ):
        await ask(source)
        yield source, puller


def moved(client):
    return client.worker.statistics()["peer_tier"]


async def ask(client, params=None, prompt=PROMPT, **fields):
    body = {"prompt": prompt, "max_tokens": 2} | fields
    if params is not None:
        body["kv_transfer_params"] = params
    return await client.post(COMPLETIONS, json=body)


def cached(answer):
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def named(client):
    host, port = client.worker.transfers.address
    return pull_params("t", HandoverPeer(host=host, side_port=port))


async def test_a_pull_computes_only_the_rest_and_reports_the_prefix_as_cached(pair):
    source, puller = pair
    answer = await ask(puller, named(source))
    assert (answer.status_code, cached(answer)) == (200, 112)
    assert puller.engine()["prefill_tokens"] == 8
    assert (moved(puller)["pulls"], moved(puller)["pulled_tokens"]) == (1, 112)


async def test_a_decode_worker_waits_for_the_prefill_with_its_id(pair):
    prefiller, decoder = pair  # what the first has computed so far was for nobody
    (source,) = named(prefiller).values()
    decoding = asyncio.ensure_future(ask(decoder, {"remote_prefiller": source}))
    await eventually(lambda: decoder.worker.server_load == 1)
    assert not decoding.done()
    await ask(prefiller, {"remote_decoder": {"kv_request_id": "t"}}, max_tokens=1)
    answer = await decoding
    assert (answer.status_code, cached(answer)) == (200, 112)
    assert (decoder.engine()["prefill_tokens"], moved(decoder)["pulls"]) == (8, 1)


async def test_a_decode_worker_computes_what_has_not_come_in_time(pair, monkeypatch):
    monkeypatch.setattr(module, "WAIT_S", 0.05)
    prefiller, decoder = pair
    (source,) = named(prefiller).values()
    assert cached(await ask(decoder, {"remote_prefiller": source})) == 0
    assert decoder.engine()["prefill_tokens"] == len(PROMPT)


async def test_only_what_the_worker_lacks_is_pulled(pair):
    source, puller = pair
    await ask(puller, prompt=PROMPT[:64])
    assert cached(await ask(puller, named(source))) == 112
    assert moved(puller)["pulled_tokens"] == 48


@pytest.mark.parametrize("other", [{"prompt": PROMPT[::-1]}, {"cache_salt": "x"}])
async def test_a_source_that_lacks_the_prompt_costs_a_question(pair, other):
    source, puller = pair
    assert cached(await ask(puller, named(source), **other)) == 0
    assert moved(puller)["pulls"] == 0


async def test_a_source_that_is_gone_costs_only_the_prefill(pair):
    _, puller = pair
    params = pull_params("t", HandoverPeer(host="127.0.0.1", side_port=9))
    assert cached(await ask(puller, params)) == 0
    assert puller.engine()["prefill_tokens"] == len(PROMPT)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"remote_kv_source": 7},
        {"remote_kv_source": {"remote_host": "127.0.0.1", "remote_port": 9}},
        {"remote_kv_source": {"kv_request_id": "t", "remote_host": 1, "remote_port": 9}},
        {"remote_kv_source": {"kv_request_id": "t", "remote_host": "h", "remote_port": "9"}},
        {"remote_kv_source": {"kv_request_id": "t", "remote_host": "h", "remote_port": 70_000}},
    ],
)
async def test_parameters_that_name_no_source_are_ignored(pair, params):
    assert cached(await ask(pair[1], params)) == 0


async def test_ids_that_are_none_are_refused(pair):
    assert (await ask(pair[1], prompt=[2**40])).status_code == 400


@pytest.mark.parametrize("stream", [False, True])
async def test_a_load_that_fails_ends_the_request(pair, stream):
    source, puller = pair
    puller.worker.peer_tier.faults.failed_loads = True
    answer = await ask(puller, named(source), stream=stream)
    assert answer.status_code == (200 if stream else 500)
    assert "KV load failed" in answer.text
    assert moved(puller)["failed"] == 1


async def test_a_client_that_leaves_during_a_pull_leaves_nothing_behind(pair):
    source, puller = pair
    puller.worker.peer_tier.faults.slowdown = 1e9
    puller.worker.peer_tier._time_scale = 1.0
    asking = asyncio.ensure_future(ask(puller, named(source)))
    await eventually(lambda: puller.worker.server_load == 1)
    asking.cancel()
    await eventually(lambda: puller.worker.server_load == 0)
    assert moved(puller)["pulls"] == 0


async def test_host_memory_outlives_the_gpu_cache(worker_with):
    async with worker_with(kv_connector="offloading_peer", num_blocks=12) as worker:
        await ask(worker)
        await ask(worker, prompt=PROMPT[::-1])
        assert cached(await ask(worker)) == 112
