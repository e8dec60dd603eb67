"""A prefill and a decode worker with NIXL's bidirectional mode: the next turn's prefill reads the answer before.

vLLM compares no token ids, and a read after the lease has no other sign than its text. So each answer is compared with
that of one worker, which computes everything itself: its cache salt is new.
"""

import asyncio
import random

import httpx
import pytest

from tests.real_handover.asking import ANSWER_S, GREEDY
from tests.real_handover.connectors import TURN_S
from tests.real_handover.site import metric

ASKED = GREEDY | {"max_tokens": 100, "return_token_ids": True}
NEW_TOKENS = 40


@pytest.fixture(scope="module")
def site(start):
    return start("nixl_turns")


def ids(seed, count):
    drawn = random.Random(seed)
    return [drawn.randrange(300, 7_000) for _ in range(count)]


async def ask(url, prompt, prefill=None, **fields):
    """Return the token ids of an answer, and its usage."""
    headers = {} if prefill is None else {"x-prefiller-host-port": prefill.id}
    async with httpx.AsyncClient(timeout=ANSWER_S, headers=headers) as client:
        answer = await client.post(url + "/v1/completions", json=ASKED | {"prompt": prompt} | fields)
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    assert whole["kv_transfer_params"] is None
    return whole["choices"][0]["token_ids"], whole["usage"]


async def alone(site, prompt):
    """Return the answer of a worker that has nothing cached for it."""
    (worker,) = site.prefills
    return (await ask(worker.url, prompt, cache_salt=str(random.random())))[0]


def read(site):
    return metric(site.prefills[0], "prompt_tokens_by_source_total", source="external_kv_transfer")


async def test_the_next_turns_have_the_text_of_one_worker(site):
    prompt, (prefill,) = ids("turns", 500), site.prefills
    for turn in range(4):
        before = read(site)
        answer, usage = await ask(site.url, prompt, prefill)
        assert answer == await alone(site, prompt)
        moved, cached = read(site) - before, usage["prompt_tokens_details"]["cached_tokens"]
        if turn:
            assert 64 <= moved <= len(prompt) - NEW_TOKENS
            assert cached >= len(prompt) - NEW_TOKENS - 32
        else:
            assert (moved, cached) == (0, 0)
        prompt = prompt + answer + ids(turn, NEW_TOKENS)
    turns = site.outcomes("kept_turns")
    assert (turns["read"], turns["kept"], turns["none"]) == (3, 4, 1)
    assert site.outcomes() == {"handed_over": 4}


async def test_a_prompt_that_departs_from_the_answer_is_computed(site):
    prompt, (prefill,) = ids("departs", 500), site.prefills
    answer, _ = await ask(site.url, prompt, prefill)
    before = read(site)
    other = prompt + answer[:-10] + ids("departs again", 50)
    assert (await ask(site.url, other, prefill))[0] == await alone(site, other)
    assert read(site) == before


async def test_a_turn_is_not_read_after_its_lease(site):
    prompt, (prefill,) = ids("late", 500), site.prefills
    answer, _ = await ask(site.url, prompt, prefill)
    prompt = prompt + answer + ids("later", NEW_TOKENS)
    await asyncio.sleep(TURN_S - 1)  # the margin is 2 s
    before, expired = read(site), site.outcomes("kept_turns").get("expired", 0)
    assert (await ask(site.url, prompt, prefill))[0] == await alone(site, prompt)
    assert read(site) == before
    assert site.outcomes("kept_turns")["expired"] == expired + 1


async def test_a_lease_that_the_worker_ends_earlier_costs_only_time(site):
    """The gateway's settings say that blocks stay for much longer than they do."""
    (prefill,) = site.prefills
    with site.another_gateway({"auth.allow": ["transfer_params"]}, turn_lease_s=600) as url:
        prompt = ids("stale", 500)
        answer, _ = await ask(url, prompt, prefill)
        prompt = prompt + answer + ids("staler", NEW_TOKENS)
        await asyncio.sleep(TURN_S + 2)
        await asyncio.gather(*[alone(site, ids(number, 1_500)) for number in range(4)])  # other content in the blocks
        assert (await ask(url, prompt, prefill))[0] == await alone(site, prompt)
    await site.recovered()
    await site.at_rest()
