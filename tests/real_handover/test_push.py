"""Real KV cache that a prefill worker writes to a decode worker that waits for it."""

import asyncio
from contextlib import suppress
from itertools import product

import httpx

from tests.real_handover.test_pull import ask, chat, completion

CONNECTOR = "nixl_push"


def named(site):
    """Return a client whose requests are handed over by the prefill worker, whatever that costs."""
    prefiller = site.prefill_url.removeprefix("http://")
    return httpx.AsyncClient(timeout=200, headers={"x-prefiller-host-port": prefiller})


async def kv_usage(client, url):
    """Return the share of a worker's KV cache that is in use."""
    text = (await client.get(f"{url}/metrics")).text
    (line,) = [line for line in text.splitlines() if line.startswith("vllm:kv_cache_usage_perc{")]
    return float(line.rpartition(" ")[2])


async def test_the_text_is_that_of_one_worker(site):
    async with named(site) as client:
        for seed, (request_of, stream) in enumerate(product((completion, chat), (False, True, False, True))):
            path, body = request_of(f"pushed {seed}")
            text, usage = await ask(client, site.gateway_url, path, body, stream=stream)
            alone, known = await ask(client, site.prefill_url, path, body)
            assert text == alone
            assert usage["prompt_tokens"] == known["prompt_tokens"]
            assert usage["completion_tokens"] == 24
            assert usage["prompt_tokens_details"]["cached_tokens"] < 32  # of a chat, at most what all chats begin with
    assert site.outcomes() == {"handed_over": 8}


async def test_clients_that_leave_strand_no_blocks(site):
    async with named(site) as client:
        for seed in range(6):
            path, body = completion(f"left {seed}")
            with suppress(httpx.TimeoutException):
                await client.post(site.gateway_url + path, json=body, timeout=0.04 * (seed + 1))
        for url in (site.prefill_url, site.decode_url):
            for _ in range(60):  # longer than the lease
                if await kv_usage(client, url) == 0.0:
                    break
                await asyncio.sleep(0.5)
            assert await kv_usage(client, url) == 0.0
