"""Real KV cache that a prefill worker hands to a decode worker: the text is that of one worker, token for token."""

import asyncio
import json
import os
import random
import signal
from contextlib import asynccontextmanager
from itertools import product

import httpx

from tests.support.waiting import eventually

CONNECTOR = "nixl_pull"
WORDS = tuple("alpha beta gamma delta red blue green one two three four fish house tree car".split())  # noqa: SIM905
GREEDY = {"model": "tiny", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


def prompt(seed):
    drawn = random.Random(seed)
    return " ".join(drawn.choice(WORDS) for _ in range(300))


def completion(seed):
    return "/v1/completions", GREEDY | {"prompt": prompt(seed)}


def chat(seed):
    return "/v1/chat/completions", GREEDY | {"messages": [{"role": "user", "content": prompt(seed)}]}


def message(seed):
    return {
        "model": "tiny",
        "max_tokens": 24,
        "temperature": 0,
        "messages": [{"role": "user", "content": prompt(seed)}],
    }


def response(seed):
    return {"model": "tiny", "max_output_tokens": 24, "temperature": 0, "ignore_eos": True, "input": prompt(seed)}


async def whole(client, url, path, body):
    """Return the texts of a message or a response, and its usage."""
    answer = (await client.post(url + path, json=body)).raise_for_status().json()
    assert not answer.get("kv_transfer_params")
    parts = (
        answer["content"] if "content" in answer else [part for item in answer["output"] for part in item["content"]]
    )
    return [part["text"] for part in parts], answer["usage"]


async def streamed(client, url, path, body):
    """Return the text of a streamed message or response."""
    text = ""
    async with client.stream("POST", url + path, json=body | {"stream": True}) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                assert "error" not in event["type"]
                delta = event.get("delta") or ""
                text += delta.get("text", "") if isinstance(delta, dict) else delta
    return text


async def ask(client, url, path, body, *, stream=False):
    """Return the text, and the usage."""
    if not stream:
        answer = (await client.post(url + path, json=body)).raise_for_status().json()
        choice = answer["choices"][0]
        return choice["text"] if "text" in choice else choice["message"]["content"], answer["usage"]
    text, usage = "", None
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", url + path, json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                frame = json.loads(line[6:])
                assert "error" not in frame
                usage = frame.get("usage") or usage
                for choice in frame["choices"]:
                    text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    return text, usage


def requests_on(url):
    """Return the number of requests that a worker runs."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:num_requests_running{"))


@asynccontextmanager
async def streams_on(site):
    """Let streams run on the decode worker meanwhile, so that a handover pays."""
    body = GREEDY | {"max_tokens": 1_500, "messages": [{"role": "user", "content": "count"}]}
    async with httpx.AsyncClient(timeout=200) as client:
        running = [
            asyncio.ensure_future(ask(client, site.gateway_url, "/v1/chat/completions", body, stream=True))
            for _ in range(3)
        ]
        try:
            await eventually(lambda: requests_on(site.decode_url) >= len(running), 60.0)
            yield client
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def test_a_frozen_prefill_worker_costs_only_time(site):
    path, body = completion("frozen")
    async with streams_on(site) as client:
        os.kill(site.prefill.pid, signal.SIGSTOP)
        try:
            text, _ = await ask(client, site.gateway_url, path, body)
        finally:
            os.kill(site.prefill.pid, signal.SIGCONT)
        assert text == (await ask(client, site.prefill_url, path, body))[0]
    assert site.outcomes()["prefill_failed"] >= 1


async def test_the_text_is_that_of_one_worker(site):
    """The gateway hands over what it finds cheaper so: surely some of these, and the text is right for all."""
    async with streams_on(site) as client:
        for seed, (request_of, stream) in enumerate(product((completion, chat), (False, True, False, True))):
            path, body = request_of(seed)
            text, usage = await ask(client, site.gateway_url, path, body, stream=stream)
            alone, known = await ask(client, site.prefill_url, path, body)
            assert text == alone
            assert usage["prompt_tokens"] == known["prompt_tokens"]
            assert usage["completion_tokens"] == 24
            assert usage["prompt_tokens_details"]["cached_tokens"] < 32  # of a chat, at most what all chats begin with
    assert site.outcomes()["handed_over"] >= 3


async def test_messages_and_responses_have_the_text_of_one_worker(site):
    before = site.outcomes().get("handed_over", 0)
    async with streams_on(site) as client:
        for seed, (path, body_of) in enumerate(
            [("/v1/messages", message), ("/v1/responses", response), ("/v1/messages", message)]
        ):
            texts, usage = await whole(client, site.gateway_url, path, body_of(f"whole {seed}"))
            alone, known = await whole(client, site.prefill_url, path, body_of(f"whole {seed}"))
            assert texts == alone
            assert usage["output_tokens"] == known["output_tokens"]
            text = await streamed(client, site.gateway_url, path, body_of(f"stream {seed}"))
            assert text == await streamed(client, site.prefill_url, path, body_of(f"stream {seed}"))
    assert site.outcomes()["handed_over"] >= before + 3
