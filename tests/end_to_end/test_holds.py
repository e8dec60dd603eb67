"""A long prompt is held while its worker prefills another one or lacks KV capacity, and a short one goes ahead."""

import asyncio
import random

import pytest

from loadtest.drive.chat import chat
from loadtest.drive.http import Client

pytestmark = pytest.mark.slow

WORDS = [
    "router",
    "worker",
    "prefix",
    "cache",
    "token",
    "stream",
    "block",
    "prompt",
    "answer",
    "model",
    "queue",
    "batch",
]


def prompt(words, seed):
    drawn = random.Random(seed)
    return " ".join(drawn.choice(WORDS) + str(drawn.randrange(1_000)) for _ in range(words))


@pytest.mark.parametrize("hold", ["2", "0"])
def test_a_short_prompt_passes_a_long_one_that_waits(start, hold):
    running = start(
        workers=1, worker_flags=("--time-scale", "4"), serve_flags=("--set", f"policy.hold.prefills={hold}")
    )
    long, short = asyncio.run(load(running))
    assert long.error is short.error is None
    first_s = {name: one.started_s + one.ttft_s for name, one in (("long", long), ("short", short))}
    waited = [decision["waited_s"] for decision in running.admin.get("/admin/v1/decisions").json()["decisions"]]
    if hold == "2":
        assert first_s["short"] < first_s["long"]
        assert max(waited) > 0.1 and running.metric("warmroute_hold_seconds_count") >= 1
        assert running.metric("warmroute_hold_seconds_sum") > 0.1
    else:
        assert first_s["long"] < first_s["short"]
        assert running.metric("warmroute_hold_seconds_count") == 0
    running.wait_idle()
    assert running.metric("warmroute_held_requests") == 0


@pytest.mark.parametrize("hold", ["6", "0"])
def test_a_short_prompt_passes_a_long_one_that_waits_for_room(start, hold):
    running = start(
        workers=1,
        worker_flags=("--time-scale", "4", "--num-gpu-blocks", str(BLOCKS)),
        serve_flags=("--set", f"policy.hold.kv_space={hold}"),
    )
    explained, ahead, long, short = asyncio.run(crowd(running))
    assert ahead.error is long.error is short.error is None
    first_s = {name: one.started_s + one.ttft_s for name, one in (("long", long), ("short", short))}
    (worker,) = explained["candidates"]
    needed = worker["kv_tokens"] + worker["idle_tokens"] + worker["uncached_tokens"]
    assert needed > worker["kv_capacity_tokens"] == 16 * BLOCKS
    if hold == "6":
        assert first_s["short"] < first_s["long"]
        assert explained["hold_s"] > 0.0 and explained["reason"].endswith("holds for space in its KV cache")
        assert running.metric("warmroute_hold_seconds_count") >= 1
    else:
        assert first_s["long"] < first_s["short"], "behind it, in the worker's queue"
        assert explained["hold_s"] == 0.0
        assert running.metric("warmroute_hold_seconds_count") == 0
    running.wait_idle()


BLOCKS = 1_000


async def crowd(system):
    """Send a long prompt while a running answer takes most of the cache, and a short prompt a moment later."""
    client = Client(system.url)

    def asked(words, seed, tokens):
        messages = [{"role": "user", "content": prompt(words, seed)}]
        return {"model": system.model, "messages": messages, "max_tokens": tokens}

    for number in range(12):
        await chat(client, asked(100 + 200 * (number % 4), number, 4))
    ahead = asyncio.ensure_future(chat(client, asked(3_000, 100, 200)))
    await asyncio.sleep(2.0)
    body = asked(3_000, 101, 4)
    question = {"path": "/v1/chat/completions", "body": body}
    explained = system.admin.post("/admin/v1/explain", json=question).json()
    long = asyncio.ensure_future(chat(client, body))
    await asyncio.sleep(0.2)
    short = await chat(client, asked(100, 102, 4))
    answers = explained, await ahead, await long, short
    client.close()
    return answers


async def load(system):
    """Send a long prompt after another long one, and a short prompt a moment later."""
    client = Client(system.url)

    async def ask(words, seed):
        messages = [{"role": "user", "content": prompt(words, seed)}]
        return await chat(client, {"model": system.model, "messages": messages, "max_tokens": 4})

    for number in range(12):
        await ask(100 + 200 * (number % 4), number)
    ahead = asyncio.ensure_future(ask(6_000, 100))
    await asyncio.sleep(0.2)
    long = asyncio.ensure_future(ask(5_000, 101))
    await asyncio.sleep(0.2)
    short = await ask(100, 102)
    await ahead
    long = await long
    client.close()
    return long, short
