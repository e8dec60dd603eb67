"""With one request at a time and all events received, every prediction of cached tokens equals the report."""

import asyncio

import pytest

from loadtest.load.conversations import turn_body
from loadtest.load.http import Client
from loadtest.load.seen import chat
from loadtest.workload.conversations import Shape, generate

pytestmark = pytest.mark.slow


@pytest.mark.timeout(300)
def test_demo_workload_is_predicted_to_the_token(start):
    system = start(workers=4, worker_flags=("--time-scale", "0.01", "--seed", "1"))
    system.wait_for(lambda: _residencies(system) == {"exact"}, what="an exact view of every worker")
    conversations = generate(Shape(), seed=0)  # the traffic of `warmroute demo`
    timings = asyncio.run(_one_at_a_time(system, conversations))
    assert [timing.error for timing in timings if timing.error] == []
    assert len(timings) == 300
    wrong = [t for t in timings if t.predicted_cached_tokens != t.cached_tokens]
    assert wrong == []
    assert sum(timing.cached_tokens for timing in timings) > 0.5 * sum(timing.prompt_tokens for timing in timings)


async def _one_at_a_time(system, conversations):
    client = Client(system.url)
    timings = []
    dialogues = {conversation.id: conversation.opening() for conversation in conversations}
    for index in range(len(conversations[0].turns)):
        for conversation in conversations:
            messages = dialogues[conversation.id]
            messages.append(conversation.message(index))
            timing = await chat(client, turn_body(system.model, conversation, index, messages))
            timings.append(timing)
            messages.append({"role": "assistant", "content": timing.text})
            await asyncio.to_thread(system.wait_idle)
    client.close()
    return timings


def _residencies(system):
    return {worker["candidates"][0]["residency"] for worker in system.workers().values()}
