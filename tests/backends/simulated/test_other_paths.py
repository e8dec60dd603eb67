import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

COMPLETIONS = "/v1/completions"


async def test_models_lists_the_model_and_its_adapters(worker_with):
    async with worker_with(model_name="base", lora_adapters=("style",)) as client:
        base, style = (await client.get("/v1/models")).json()["data"]
        assert (base["id"], base["parent"], base["max_model_len"]) == ("base", None, 131_072)
        assert base["root"].endswith("model")
        assert (style["id"], style["parent"], style["max_model_len"]) == ("style", "base", None)


async def test_tokenize_round_trip(client):
    text = "def f(x):\n    return 'ä → 𝄞' # naïve\n"
    tokenized = (await client.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
    assert tokenized["count"] == len(tokenized["tokens"]) == len(tokenized["token_strs"])
    assert tokenized["max_model_len"] == 131_072
    detokenized = (await client.post("/detokenize", json={"tokens": tokenized["tokens"]})).json()
    assert detokenized == {"prompt": text}
    assert (await client.post("/detokenize", json={"tokens": [8_000_000]})).status_code == 400


async def test_tokenize_chat_is_what_a_chat_request_runs(client):
    messages = [{"role": "user", "content": "Hi"}]
    tokenized = (await client.post("/tokenize", json={"messages": messages})).json()
    answer = await client.chat("Hi", max_tokens=1, return_token_ids=True)
    assert tokenized["tokens"] == answer["prompt_token_ids"]
    assert tokenized["token_strs"] is None


async def test_liveness_paths(client):
    for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
        answer = await client.request(method, path)
        assert (answer.status_code, answer.content) == (200, b"")
    assert (await client.get("/version")).json()["version"].startswith("0.33.0")


async def test_load_counts_requests(worker_with):
    async with worker_with(time_scale=1.0) as client:
        assert (await client.get("/load")).json() == {"server_load": 0}
        async with client.stream("POST", COMPLETIONS, json={"prompt": "a", "max_tokens": 1000, "stream": True}):
            assert (await client.get("/load")).json() == {"server_load": 1}


def samples(page):
    """Return {(name, engine label or None): value} and {name: labels} of a metrics page."""
    found = {}
    labels = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, sample.value)
            labels[sample.name] = sample.labels
    return found, labels


async def test_metrics_have_vllms_names(client):
    for _ in range(2):
        await client.post(COMPLETIONS, json={"prompt": list(range(300, 365)), "max_tokens": 5})
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    values, labels = samples(answer.text)
    assert labels["vllm:num_requests_running"] == {"model_name": "warmroute-simulated", "engine": "0"}
    expected = {
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0,
        "vllm:prefix_cache_queries_total": 130,
        "vllm:prefix_cache_hits_total": 64,
        "vllm:prompt_tokens_total": 130,
        "vllm:generation_tokens_total": 10,
        "vllm:num_preemptions_total": 0,
        "vllm:time_to_first_token_seconds_count": 2,
        "vllm:inter_token_latency_seconds_count": 8,
        "vllm:e2e_request_latency_seconds_count": 2,
        "vllm:request_queue_time_seconds_count": 2,
        "vllm:request_prompt_tokens_sum": 130,
        "vllm:request_generation_tokens_sum": 10,
        "vllm:request_prefill_kv_computed_tokens_sum": 66,
    }
    assert {name: values[name] for name in expected} == expected
    assert values["vllm:e2e_request_latency_seconds_sum"] >= values["vllm:time_to_first_token_seconds_sum"] > 0
    config = labels["vllm:cache_config_info"]
    assert (config["block_size"], config["num_gpu_blocks"], config["engine"]) == ("16", "27500", "0")
    assert (config["enable_prefix_caching"], config["hash_block_size"]) == ("True", "16")
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="warmroute-simulated"} 2.0' in (
        answer.text
    )
    assert values["process_start_time_seconds"] > 1e9


async def test_kv_event_sources(worker_with):
    async with worker_with(kv_events_topic="t", kv_events_buffer_steps=7) as client:
        (source,) = (await client.get("/kv_event_sources")).json().values()
        assert source["endpoint"] == client.running.bound.kv_events_endpoint
        assert source["replay_endpoint"] == client.running.bound.kv_events_replay_endpoint
        assert (source["topic"], source["buffer_steps"], source["publisher"]) == ("t", 7, "zmq")
    async with worker_with(kv_events=False) as client:
        assert (await client.get("/kv_event_sources")).json() == {}
        assert client.running.bound.kv_events_endpoint is None
        assert (await client.post(COMPLETIONS, json={"prompt": "a"})).status_code == 200


async def test_a_wildcard_address_has_vllms_form(worker_with):
    async with worker_with(host="0.0.0.0") as client:
        (source,) = (await client.get(f"http://127.0.0.1:{client.running.bound.port}/kv_event_sources")).json().values()
        assert source["endpoint"].startswith("tcp://*:")


async def test_reset_prefix_cache(worker_with):
    async with worker_with(dev_mode=True) as client:
        body = {"prompt": list(range(300, 365)), "max_tokens": 1}
        for expected in (0, 0):
            answer = (await client.post(COMPLETIONS, json=body)).json()
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == expected
            assert (await client.post("/reset_prefix_cache")).json() == {"success": True}


async def test_a_sleeping_worker_aborts_and_refuses_work(worker_with, until):
    async with worker_with(dev_mode=True, time_scale=1.0) as client:
        answer = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1000}))
        await until(lambda: client.engine()["running"] == 1)
        assert (await client.post("/sleep?level=1")).status_code == 200
        assert (await answer).json()["choices"][0]["finish_reason"] == "abort"
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": True}
        assert (await client.get("/health")).status_code == 200
        assert (await client.post(COMPLETIONS, json={"prompt": "a"})).status_code == 503
        assert 'sleep_state="weights_offloaded"} 1.0' in (await client.get("/metrics")).text
        assert (await client.post("/wake_up")).status_code == 200
        assert (await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1})).status_code == 200
        assert (await client.post("/sleep?level=7")).status_code == 400


@pytest.mark.parametrize(("mode", "ends"), [("abort", "abort"), ("wait", "length")])
async def test_a_paused_worker_ends_its_work_and_refuses_more(worker_with, until, mode, ends):
    async with worker_with(dev_mode=True, time_scale=0.1) as client:
        answer = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 100}))
        await until(lambda: client.engine()["running"] == 1)
        assert (await client.post(f"/pause?mode={mode}")).json() == {"status": "paused"}
        assert client.engine()["running"] == 0
        assert (await answer).json()["choices"][0]["finish_reason"] == ends
        assert (await client.get("/is_paused")).json() == {"is_paused": True}
        assert (await client.post(COMPLETIONS, json={"prompt": "a"})).status_code == 503
        assert (await client.post("/resume")).json() == {"status": "resumed"}
        assert (await client.get("/is_paused")).json() == {"is_paused": False}
        assert (await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1})).status_code == 200
        assert (await client.post("/pause?mode=later")).status_code == 422


async def test_a_pause_that_keeps_work_freezes_it(worker_with, until):
    async with worker_with(dev_mode=True, time_scale=0.1) as client:
        assert (await client.post("/pause?mode=keep")).status_code == 200
        answer = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 3}))
        await until(lambda: client.engine()["waiting"] + client.engine()["running"] == 1)
        assert client.engine()["generation_tokens"] == 0
        await client.post("/resume")
        assert (await answer).json()["usage"]["completion_tokens"] == 3


async def test_adapters_are_loaded_and_unloaded(worker_with, tmp_path):
    async with worker_with(runtime_lora=True) as client:
        adapter = {"lora_name": "support", "lora_path": str(tmp_path)}
        assert (await client.post("/v1/load_lora_adapter", json=adapter)).status_code == 200
        assert (await client.post("/v1/load_lora_adapter", json=adapter)).status_code == 400
        cards = {card["id"]: card for card in (await client.get("/v1/models")).json()["data"]}
        assert cards["support"]["root"] == str(tmp_path) and cards["support"]["parent"]
        body = {"model": "support", "prompt": "a", "max_tokens": 1}
        assert (await client.post(COMPLETIONS, json=body)).status_code == 200
        assert (await client.post("/v1/unload_lora_adapter", json={"lora_name": "support"})).status_code == 200
        assert (await client.post(COMPLETIONS, json=body)).status_code == 404
        assert (await client.post("/v1/unload_lora_adapter", json={"lora_name": "support"})).status_code == 404
        missing = {"lora_name": "b", "lora_path": str(tmp_path / "none")}
        assert (
            "No adapter found" in (await client.post("/v1/load_lora_adapter", json=missing)).json()["error"]["message"]
        )


async def test_metrics_without_log_stats_omit_the_engine(worker_with):
    async with worker_with(log_stats=False) as client:
        await client.chat("Hi", max_tokens=1)
        page = (await client.get("/metrics")).text
        names = {family.name for family in text_string_to_metric_families(page)}
        assert names == {"process_start_time_seconds"}


async def test_openai_only_serves_completions_chats_and_models(worker_with):
    async with worker_with(openai_only=True, kv_events=False, prompt_tokens_details=False) as client:
        assert (await client.chat("Hi", max_tokens=1))["usage"]["completion_tokens"] == 1
        assert (await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1})).status_code == 200
        (card,) = (await client.get("/v1/models")).json()["data"]
        assert sorted(card) == ["created", "id", "object", "owned_by"]
        for path in ("/health", "/metrics", "/version", "/kv_event_sources", "/load", "/ping"):
            assert (await client.get(path)).status_code == 404
        for path in ("/tokenize", "/v1/messages", "/v1/responses"):
            assert (await client.post(path, json={})).status_code == 404
