"""Workers that share a folder of KV cache: the text is that of one worker, and the decode worker reads the folder."""

import re

import httpx

from tests.real_handover.test_pull import ask, chat, completion, message, streams_on, whole

CONNECTOR = "shared_store"
READ = re.compile(r'vllm:prompt_tokens_by_source_total\{[^}]*source="external_kv_transfer"[^}]*\} (\S+)')


def read_tokens(url):
    """Return the prompt tokens that a worker has taken from outside."""
    return sum(float(value) for value in READ.findall(httpx.get(f"{url}/metrics").text))


async def test_the_decode_worker_finds_what_the_prefill_worker_has_stored(site):
    before = read_tokens(site.decode_url)
    async with streams_on(site) as client:
        for seed, request_of in enumerate((completion, chat, completion)):
            path, body = request_of(f"stored {seed}")
            text, usage = await ask(client, site.gateway_url, path, body, stream=bool(seed))
            alone, known = await ask(client, site.prefill_url, path, body)
            assert text == alone
            assert usage["prompt_tokens"] == known["prompt_tokens"]
        texts, _ = await whole(client, site.gateway_url, "/v1/messages", message("stored"))
        assert texts == (await whole(client, site.prefill_url, "/v1/messages", message("stored")))[0]
    assert site.outcomes()["handed_over"] >= 2
    assert read_tokens(site.decode_url) > before
