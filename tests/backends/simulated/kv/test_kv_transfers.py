"""KV handover between embedded workers, with the fields and the failures of vLLM's NixlConnector."""

import asyncio

import pytest

from backends.vllm.handover.connector import HandoverPeer, Legs
from backends.vllm.handover.connectors import CONNECTORS
from backends.vllm.handover.prefill_answer import read_prefill_answer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PULL = CONNECTORS["nixl_pull"]
LEGS = Legs(transfer_id="t", prefill=HandoverPeer(host="127.0.0.1"), decode=HandoverPeer(host="127.0.0.1"))
PROMPT = list(range(300, 420))


@pytest.fixture
async def pair(worker_with):
    async with worker_with(kv_connector="nixl_pull") as prefill, worker_with(kv_connector="nixl_pull") as decode:
        yield prefill, decode


def moved(client):
    return client.worker.statistics()["transfers"]


async def handed_over(prefill, prompt=PROMPT):
    """Return the answer of a prefill, and the parameters for the decode worker."""
    body = {
        "prompt": prompt,
        "max_tokens": 1,
        "return_token_ids": True,
        "kv_transfer_params": PULL.prefill_params(LEGS),
    }
    answer = read_prefill_answer((await prefill.post(COMPLETIONS, json=body)).content)
    return answer, PULL.decode_params(LEGS, PULL.handed_over(answer))


async def test_the_decode_worker_reports_what_the_prefill_worker_had_cached(pair):
    prefill, decode = pair
    await handed_over(prefill)
    answer, params = await handed_over(prefill)
    assert answer.cached_tokens == 112
    got = (await decode.post(COMPLETIONS, json={"prompt": PROMPT, "kv_transfer_params": params})).json()
    assert got["usage"]["prompt_tokens_details"] == {"cached_tokens": 112}
    assert got["usage"]["completion_tokens"] == 16
    assert decode.engine()["prefill_tokens"] == 1
    assert (moved(decode)["received"], moved(decode)["stale_reads"]) == (1, 0)


async def test_the_prefill_workers_blocks_are_free_once_they_are_read(pair):
    prefill, decode = pair
    _, params = await handed_over(prefill)
    assert (moved(prefill)["leased"], prefill.engine()["kept_blocks"]) == (1, 8)
    await decode.post(COMPLETIONS, json={"prompt": PROMPT, "kv_transfer_params": params})
    assert (moved(prefill)["leased"], prefill.engine()["kept_blocks"], prefill.engine()["kv_usage"]) == (0, 0, 0.0)


async def test_a_prompts_ids_replace_its_text(pair):
    prefill, decode = pair
    answer, params = await handed_over(prefill)
    body = {"messages": [{"role": "user", "content": "other words"}], "max_tokens": 4}
    frames = await decode.frames(
        CHAT,
        body
        | {
            "kv_transfer_params": params | {"prompt_token_ids": answer.prompt_token_ids},
            "stream_options": {"include_usage": True},
        },
    )
    assert frames[-1]["usage"]["prompt_tokens"] == len(PROMPT)


@pytest.mark.parametrize("ids", ["1", [1.5], [10**9]])
async def test_ids_that_are_none_are_refused(pair, ids):
    body = {"messages": [{"role": "user", "content": "a"}], "kv_transfer_params": {"prompt_token_ids": ids}}
    answer = await pair[1].post(CHAT, json=body)
    assert answer.status_code == 400


async def test_blocks_that_nobody_reads_are_free_when_their_lease_ends(worker_with, until):
    async with worker_with(kv_connector="nixl_pull", kv_lease_s=0.5) as prefill:
        await handed_over(prefill)
        await until(lambda: moved(prefill)["expired"] == 1)
        assert prefill.engine()["kept_blocks"] == 0
        text = (await prefill.get("/metrics")).text
        assert 'vllm:nixl_num_kv_expired_reqs_total{engine="0",model_name="warmroute-simulated"} 1.0' in text


async def test_a_read_after_the_lease_is_answered_and_counted_as_stale(worker_with, until):
    async with worker_with(kv_connector="nixl_pull", kv_lease_s=0.5) as prefill:
        _, params = await handed_over(prefill)
        await until(lambda: moved(prefill)["leased"] == 0)
        async with worker_with(kv_connector="nixl_pull") as decode:
            body = {"prompt": PROMPT, "kv_transfer_params": params}
            assert (await decode.post(COMPLETIONS, json=body)).status_code == 200
            assert moved(decode)["stale_reads"] == 1
        text = (await prefill.get("/metrics")).text
        assert 'vllm:nixl_num_notifications_after_expiry_total{engine="0",model_name="warmroute-simulated"} 1.0' in text


async def test_a_prompt_for_a_full_worker_waits_beyond_its_lease(worker_with, until):
    async with (
        worker_with(kv_connector="nixl_pull", kv_lease_s=0.3) as prefill,
        worker_with(kv_connector="nixl_pull", kv_lease_s=0.3, num_blocks=12, time_scale=1.0) as decode,
    ):
        body = {"prompt": [7] * 80, "max_tokens": 90, "ignore_eos": True}  # 11 blocks in the end, for about 0.6 s
        first = asyncio.ensure_future(decode.post(COMPLETIONS, json=body))
        await until(lambda: decode.engine()["running"] == 1)
        _, params = await handed_over(prefill)
        second = await decode.post(COMPLETIONS, json={"prompt": PROMPT, "max_tokens": 2, "kv_transfer_params": params})
        assert (second.status_code, (await first).status_code) == (200, 200)
        assert (moved(decode)["received"], moved(decode)["stale_reads"]) == (1, 0)
        assert (moved(prefill)["expired"], moved(prefill)["late"], prefill.engine()["kv_usage"]) == (0, 0, 0.0)


async def test_a_prompt_longer_than_the_workers_cache_is_refused_at_once(worker_with):
    async with (
        worker_with(kv_connector="nixl_pull") as prefill,
        worker_with(kv_connector="nixl_pull", num_blocks=4) as decode,
    ):
        _, params = await handed_over(prefill)
        answer = await decode.post(COMPLETIONS, json={"prompt": PROMPT, "kv_transfer_params": params})
        assert answer.status_code == 400
        assert prefill.engine()["kept_blocks"] == 0


async def test_parameters_that_are_used_twice_are_a_stale_read(pair):
    prefill, decode = pair
    _, params = await handed_over(prefill)
    for _ in range(2):
        await decode.post(COMPLETIONS, json={"prompt": PROMPT, "kv_transfer_params": params})
    assert moved(decode)["stale_reads"] == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_load_from_a_dead_worker_fails_as_vllms_does(worker_with, stream):
    async with worker_with(kv_connector="nixl_pull") as decode:
        async with worker_with(kv_connector="nixl_pull") as prefill:
            _, params = await handed_over(prefill)
            await prefill.running.kill()
        body = {"prompt": PROMPT, "kv_transfer_params": params, "stream": stream}
        answer = await decode.post(COMPLETIONS, json=body)
        assert answer.status_code == (200 if stream else 500)
        assert answer.text.startswith("data: " if stream else "{")
        assert "KV load failed" in answer.text
        assert moved(decode)["failed"] == 1
        assert (await decode.post(COMPLETIONS, json={"prompt": PROMPT})).status_code == 200


async def test_the_parameters_of_an_earlier_process_fail(pair):
    prefill, decode = pair
    _, params = await handed_over(prefill)
    body = {"prompt": PROMPT, "kv_transfer_params": params | {"remote_engine_id": "another"}}
    assert (await decode.post(COMPLETIONS, json=body)).status_code == 500


async def test_a_client_that_leaves_during_the_load_frees_both_workers(pair, until):
    prefill, decode = pair
    decode.worker.transfers.faults.slowdown = 1e9
    decode.worker.transfers._time_scale = 1.0
    _, params = await handed_over(prefill)
    body = {"prompt": PROMPT, "kv_transfer_params": params, "stream": True}
    request = asyncio.ensure_future(decode.post(COMPLETIONS, json=body))
    await until(lambda: decode.worker.server_load == 1)
    request.cancel()
    await until(lambda: decode.worker.server_load == 0)
    await until(lambda: moved(prefill)["leased"] == 0)
    assert (prefill.engine()["kept_blocks"], decode.engine()["kv_usage"]) == (0, 0.0)


async def test_an_incomplete_set_of_parameters_ends_the_engine(pair):
    decode = pair[1]
    body = {"prompt": PROMPT, "kv_transfer_params": {"do_remote_prefill": True}}
    assert (await decode.post(COMPLETIONS, json=body)).status_code == 500
    assert (await decode.get("/health")).status_code == 503


async def test_a_worker_without_a_connector_ignores_parameters(worker_with):
    async with worker_with() as worker:
        body = {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": PULL.prefill_params(LEGS)}
        answer = (await worker.post(COMPLETIONS, json=body)).json()
        assert "kv_transfer_params" not in answer
        assert worker.engine()["kept_blocks"] == 0
        assert (await worker.post("/simulated/kv_blocks", json={})).status_code == 404


async def test_parameters_are_withheld_and_loads_fail_on_demand(pair):
    prefill, decode = pair
    _, params = await handed_over(prefill)
    decode.worker.transfers.faults.failed_loads = True
    body = {"prompt": PROMPT, "kv_transfer_params": params}
    assert (await decode.post(COMPLETIONS, json=body)).status_code == 500
    prefill.worker.transfers.faults.without_params = True
    body = {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": PULL.prefill_params(LEGS)}
    assert read_prefill_answer((await prefill.post(COMPLETIONS, json=body)).content).params is None
