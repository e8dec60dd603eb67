import asyncio
from collections import Counter

import pytest

from loadtest.drive.chat import chat
from loadtest.drive.http import Client

pytestmark = pytest.mark.slow

SENTENCE = "You are a careful assistant for a library of Python tools; answer briefly and quote the code. "
SYSTEM = (SENTENCE * 100)[:8000]


SLOWED = "4"
"""Factor on the step times of the profile. Six processes share the cores of the machine, so a first token may come tens
of milliseconds late. Beside steps of a few milliseconds, that delay would look like the speed of a worker.
"""


def test_shared_system_prompt_spreads_at_full_cached_share(start):
    spread = start(workers=4, worker_flags=("--time-scale", SLOWED))
    timings = asyncio.run(load(spread))
    assert [timing.error for timing in timings if timing.error] == []
    counts = Counter(timing.worker for timing in timings)
    assert max(counts.values()) <= 1.3 * 100, counts
    assert len(counts) == 4
    single = start(workers=1, worker_flags=("--time-scale", "0.2"))
    alone = asyncio.run(load(single))
    assert share(timings) >= share(alone) - 0.02


def share(timings):
    return sum(timing.cached_tokens for timing in timings) / sum(timing.prompt_tokens for timing in timings)


async def load(system, total=400, in_flight=32):
    client = Client(system.url)
    numbers = iter(range(total))
    timings = []

    async def loop():
        for number in numbers:
            messages = [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"Question {number}: what is {number} times {number + 3}?"},
            ]
            timings.append(await chat(client, {"model": system.model, "messages": messages, "max_tokens": 16}))

    await asyncio.gather(*(loop() for _ in range(in_flight)))
    client.close()
    return timings
