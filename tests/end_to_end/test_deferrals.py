"""A long prompt waits in the gateway while its worker reads another one, and a short one goes ahead of it."""

import asyncio
import random

import pytest

from loadtest.drive.chat import chat
from loadtest.drive.http import Client

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


@pytest.mark.slow
@pytest.mark.parametrize("hold", ["2", "0"])
def test_a_short_prompt_passes_a_long_one_that_waits(start, hold):
    running = start(workers=1, worker_flags=("--time-scale", "4"), serve_flags=("--policy-param", f"hold={hold}"))
    long, short = asyncio.run(load(running))
    assert long.error is short.error is None
    first_s = {name: one.started_s + one.ttft_s for name, one in (("long", long), ("short", short))}
    waited = [decision["waited_s"] for decision in running.admin.get("/admin/v1/decisions").json()["decisions"]]
    if hold == "2":
        assert first_s["short"] < first_s["long"]
        assert max(waited) > 0.1 and running.metric("warmroute_deferral_seconds_count") >= 1
        assert running.metric("warmroute_deferral_seconds_sum") > 0.1
    else:
        assert first_s["long"] < first_s["short"]
        assert running.metric("warmroute_deferral_seconds_count") == 0
    running.wait_idle()
    assert running.metric("warmroute_deferred_requests") == 0


async def load(system):
    """A long prompt behind another one, and a short one that comes a moment later."""
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
