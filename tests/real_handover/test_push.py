"""Real KV cache that a prefill worker writes to a decode worker that waits for it."""

import asyncio

import httpx

from tests.real_handover.test_pull import completion, streams_on
from tests.real_handover.test_pull import test_the_text_is_that_of_one_worker as test_the_text_is_that_of_one_worker

CONNECTOR = "nixl_push"


async def kv_usage(client, url):
    """Return the share of a worker's KV cache that is in use."""
    text = (await client.get(f"{url}/metrics")).text
    (line,) = [line for line in text.splitlines() if line.startswith("vllm:kv_cache_usage_perc{")]
    return float(line.rpartition(" ")[2])


async def test_clients_that_leave_strand_no_blocks(site):
    async with streams_on(site) as client:
        for seed in range(4):
            path, body = completion(f"left-{seed}")
            try:
                await client.post(site.gateway_url + path, json=body, timeout=0.03 * (seed + 1))
            except httpx.TimeoutException:
                continue
    async with httpx.AsyncClient() as client:
        for url in (site.prefill_url, site.decode_url):
            for _ in range(60):  # longer than the lease
                if await kv_usage(client, url) == 0.0:
                    break
                await asyncio.sleep(0.5)
            assert await kv_usage(client, url) == 0.0
