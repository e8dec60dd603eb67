"""Small prompts do not wait for large ones, what waits is bounded, and memory is charged while it is used."""

from __future__ import annotations

import asyncio
from threading import Event

import pytest

from backends.vllm.unrenderable import Unrenderable
from router.tokenization.threads import SMALL_BYTES, Lane, Lanes, Task, Unsized


class Purse:
    """So many bytes to lend."""

    def __init__(self, size_bytes: int) -> None:
        self.left = size_bytes

    def lend(self, size_bytes: int) -> bool:
        if size_bytes > self.left:
            return False
        self.left -= size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        self.left += size_bytes


@pytest.fixture
def gate():
    event = Event()
    yield event
    event.set()


async def begun(task: Task) -> None:
    for _ in range(10):
        if not task.running:
            await asyncio.sleep(0)
    assert task.running


async def test_a_small_prompt_overtakes_large_ones(gate: Event) -> None:
    lanes = Lanes()
    large = [asyncio.create_task(lanes.run(Task(SMALL_BYTES + 1), gate.wait)) for _ in range(3)]
    assert await lanes.run(Task(SMALL_BYTES), lambda: "small") == "small"
    assert not any(task.done() for task in large)
    gate.set()
    assert await asyncio.gather(*large) == [True] * 3
    assert lanes.statistics() == {"off_loop": 4, "lanes_refused": 0, "lanes_bytes": 0}
    lanes.close()


async def test_what_waits_is_bounded(gate: Event) -> None:
    lane = Lane("test", max_bytes=100)
    first = asyncio.create_task(lane.run(Task(1_000), gate.wait, None))
    await asyncio.sleep(0)
    with pytest.raises(Unrenderable, match="too many prompts wait"):
        await lane.run(Task(1), bool, None)
    assert (lane.text_bytes, lane.refused) == (1_000, 1)
    gate.set()
    await first
    assert await lane.run(Task(1), bool, None) is False
    lane.close()


async def test_memory_is_lent_while_the_work_is_done(gate: Event) -> None:
    lane, purse = Lane("test"), Purse(10)
    running, waiting = Task(1, 8), Task(1, 8)
    first = asyncio.create_task(lane.run(running, gate.wait, purse))
    second = asyncio.create_task(lane.run(waiting, gate.wait, purse))
    await begun(running)
    assert purse.left == 2 and not waiting.running
    first.cancel()
    await asyncio.sleep(0)
    assert purse.left == 2  # the thread is still at it
    gate.set()
    assert await second
    assert purse.left == 10
    with pytest.raises(Unsized):
        await lane.run(Task(1, 11), bool, purse)
    assert await lane.run(Task(1, 10), bool, purse) is False
    assert (purse.left, lane.text_bytes) == (10, 0)
    lane.close()


async def test_work_that_waits_is_cancelled(gate: Event) -> None:
    lane = Lane("test")
    done: list[int] = []
    first = asyncio.create_task(lane.run(Task(1), gate.wait, None))
    await asyncio.sleep(0)
    second = asyncio.create_task(lane.run(Task(1), lambda: done.append(2), None))
    await asyncio.sleep(0)
    second.cancel()
    gate.set()
    await first
    await lane.run(Task(1), lambda: done.append(3), None)
    assert done == [3] and lane.text_bytes == 0
    lane.close()


async def test_failures_reach_who_waits() -> None:
    lane = Lane("test")
    with pytest.raises(ZeroDivisionError):
        await lane.run(Task(1), lambda: 1 // 0, None)
    assert lane.text_bytes == 0
    lane.close()
