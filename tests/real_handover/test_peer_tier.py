"""A worker takes the start of a prompt from another worker's host memory, and its text is that of the other one.

Requests take turns between the two workers, so the second one with a prompt may pull what the first has computed. Each
test has a new gateway: it knows no link yet, and here a link is soon known to be slower than a prefill of 500 tokens.
"""

import asyncio

import pytest

from tests.real_handover.asking import ask, chat, completion, message, response
from tests.real_handover.site import frozen, metric, until

TRIES = 8


@pytest.fixture(scope="module")
def workers(start):
    return start("peer_tier", ("mixed", "mixed"))


@pytest.fixture
def site(workers):
    workers.new_gateway()
    return workers


def from_peers(site):
    """Return the prompt tokens that the workers have taken from each other, as vLLM counts them."""
    return sum(metric(worker, "prompt_tokens_cached_by_source_total", source="p2p") for worker in site.workers)


def in_host_memory(site):
    return sum(metric(worker, "kv_offload_store_bytes_total") for worker in site.workers)


async def stored(site, path, body):
    """Ask, and wait until the worker has the prompt in host memory. Return the answer's text."""
    before = in_host_memory(site)
    text, _ = await ask(site.url, path, body)
    await until(lambda: in_host_memory(site) > before)
    return text


async def pulled(site, path, body, stream):
    """Ask twice. Return the tokens that the second worker took from the first one."""
    text, before = await stored(site, path, body), from_peers(site)
    again, usage = await ask(site.url, path, body, stream=stream)
    assert again == text
    tokens = from_peers(site) - before
    if usage and "prompt_tokens_details" in usage:
        assert tokens <= usage["prompt_tokens_details"]["cached_tokens"]
    return tokens


@pytest.mark.parametrize(
    "shapes",
    [
        ((completion, False), (chat, False), (chat, True)),
        ((message, False), (response, False), (response, True)),
    ],
    ids=["completions", "other"],
)
async def test_the_text_is_that_of_one_worker(site, shapes):
    """A stream comes last, because it teaches the gateway how slow the link is."""
    for request_of, stream in shapes:
        for seed in range(TRIES):
            if await pulled(site, *request_of(f"{request_of.__name__} {stream} {seed}"), stream) > 400:
                break
        else:
            raise AssertionError(f"no {request_of.__name__} was pulled, stream={stream}")
    assert site.outcomes("pulls") == {"pulled": 3}
    await site.at_rest()


async def test_a_source_that_dies_costs_only_time(site):
    """The last test: one of the two workers is gone."""
    for seed in range(TRIES):
        path, body = completion(f"dies {seed}")
        text = await stored(site, path, body)
        (latest, *_) = await site.decisions()
        source = next(worker for worker in site.workers if worker.id == latest["worker"])
        with frozen(source):
            answer = asyncio.create_task(ask(site.url, path, body))
            if await until(lambda: pulls_or_ends(site, answer)) != "ends":  # noqa: B023
                source.kill()
        assert (await answer)[0] == text
        if not source.ready:
            return
    raise AssertionError("nothing was pulled")


async def pulls_or_ends(site, answer):
    return "ends" if answer.done() else await site.decision("pull ")
