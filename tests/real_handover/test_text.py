"""The text of a handed-over answer is that of one worker, token for token, with each connector."""

import json
from contextlib import suppress
from itertools import product

import httpx
import pytest

from backends.vllm.handover.answer_apis import ANSWER_APIS
from backends.vllm.handover.connectors import CONNECTORS as GATEWAY_CONNECTORS
from backends.vllm.handover.parameters import HandoverError
from backends.vllm.handover.request_body import split
from tests.real_handover.asking import ANSWER_TOKENS, ask, chat, completion, message, response
from tests.real_handover.connectors import CONNECTORS
from tests.real_handover.site import metric

HANDING = ("nixl_push", "mooncake", "shared_store", "file_tier", "peer_pair", "lmcache")


@pytest.fixture(scope="module", params=HANDING)
def site(start, request):
    site = start(request.param)
    site.connector = GATEWAY_CONNECTORS[CONNECTORS[request.param].handover["connector"]]
    yield site
    site.stop()


async def test_the_text_is_that_of_one_worker(site):
    (prefill,), (decode,) = site.prefills, site.decodes
    received = metric(decode, "prompt_tokens_by_source_total", source="external_kv_transfer")
    for seed, (request_of, stream) in enumerate(product((completion, chat), (False, True, False, True))):
        path, body = request_of(f"text {seed}")
        text, usage = await ask(site.url, path, body, stream=stream, prefill=prefill)
        alone, known = await ask(prefill.url, path, body)
        assert text == alone
        assert usage["prompt_tokens"] == known["prompt_tokens"]
        assert usage["completion_tokens"] == ANSWER_TOKENS
        assert usage["prompt_tokens_details"]["cached_tokens"] < 32  # of a chat, at most what all chats begin with
    assert site.outcomes() == {"handed_over": 8}
    assert metric(decode, "prompt_tokens_by_source_total", source="external_kv_transfer") > received
    await site.at_rest()


def may_share(path, body, connector):
    """Return whether two workers may share such a request."""
    try:
        return bool(split(json.dumps(body).encode(), ANSWER_APIS[path], connector))
    except HandoverError:
        return False


async def test_messages_and_responses_have_the_text_of_one_worker(site):
    (prefill,) = site.prefills
    shared = [one for one in (message, response) if may_share(*one(""), site.connector)]
    assert shared
    before = site.outcomes().get("handed_over", 0)
    for seed, (request_of, stream) in enumerate(product(shared, (False, True))):
        path, body = request_of(f"other {seed}")
        text, _ = await ask(site.url, path, body, stream=stream, prefill=prefill)
        assert text == (await ask(prefill.url, path, body))[0]
    assert site.outcomes() == {"handed_over": before + 2 * len(shared)}


async def test_clients_that_leave_strand_no_blocks(site):
    (prefill,) = site.prefills
    for seed in range(6):
        path, body = completion(f"left {seed}")
        with suppress(httpx.TimeoutException):
            await ask(site.url, path, body, prefill=prefill, limit_s=0.04 * (seed + 1))
    await site.at_rest()
    path, body = completion("after")
    assert (await ask(site.url, path, body, prefill=prefill))[0] == (await ask(prefill.url, path, body))[0]
